#include "tests/support/mutant_world.h"

#include <cstring>
#include <mutex>
#include <numeric>
#include <vector>

#include "base/text.h"
#include "comm/world.h"

namespace bev::test {

std::string to_text(const Mutant& mutant) {
  const Exchange& exchange = mutant.exchange;
  return concat(exchange.group, " ", exchange.collective, " of ", exchange.label,
                mutant.mutation == Mutation::kRemoved ? ", removed" : ", doubled");
}

struct MutantFilter::State {
  std::optional<Mutant> mutant;
  std::mutex mutex;
  std::set<Exchange> exchanges;

  void note(const Exchange& exchange) {
    std::lock_guard lock(mutex);
    exchanges.insert(exchange);
  }
};

namespace {

class MutantGroup final : public Group {
 public:
  MutantGroup(std::unique_ptr<Group> group, MutantFilter::State& state)
      : Group(group->name(), group->rank(), {group->members().begin(), group->members().end()}),
        group_(std::move(group)),
        state_(state) {}

  Work all_reduce(const View& data, Reduction reduction, std::string_view label) override {
    auto mutation = strike(reduction == Reduction::kSum ? "sum" : "max", label);
    if (mutation == Mutation::kRemoved) return {};
    if (mutation == Mutation::kDoubled) group_->all_reduce(data, reduction, label).wait();
    return group_->all_reduce(data, reduction, label);
  }
  Work all_gather(const View& in, const View& out, std::string_view label) override {
    if (!strike("all_gather", label)) return group_->all_gather(in, out, label);
    move_part(in, 0, out, offset_of_part(in.numel()), in.numel());
    return {};
  }
  Work reduce_scatter(const View& in, const View& out, std::string_view label) override {
    auto mutation = strike("reduce_scatter", label);
    if (mutation == Mutation::kRemoved) {
      move_part(in, offset_of_part(out.numel()), out, 0, out.numel());
      return {};
    }
    Work work = group_->reduce_scatter(in, out, label);
    if (mutation == Mutation::kDoubled) {
      work.wait();
      visit_float(out.dtype, [&](auto zero) {
        using T = decltype(zero);
        for (std::int64_t i = 0; i < out.numel(); ++i) {
          T& value = out.as<T>()[i];
          value = static_cast<T>(static_cast<double>(value) * size());
        }
      });
    }
    return work;
  }
  Work broadcast(const View& data, int root, std::string_view label) override {
    if (!strike("broadcast", label)) return group_->broadcast(data, root, label);
    if (rank() != root) std::memset(data.data, 0, data.bytes());
    return {};
  }
  Work all_to_all(const View& in, std::span<const std::int64_t> send_counts, const View& out,
                  std::span<const std::int64_t> receive_counts, std::string_view label) override {
    if (!strike("all_to_all", label)) {
      return group_->all_to_all(in, send_counts, out, receive_counts, label);
    }
    auto before = [&](std::span<const std::int64_t> counts) {
      return std::accumulate(counts.begin(), counts.begin() + rank(), std::int64_t{0});
    };
    move_part(in, before(send_counts), out, before(receive_counts),
              send_counts[static_cast<std::size_t>(rank())]);
    return {};
  }
  Work send(const View& data, int to, int channel, std::string_view label) override {
    return group_->send(data, to, channel, label);
  }
  Work receive(const View& data, int from, int channel, std::string_view label) override {
    bool removed = strike("receive", label).has_value();
    Work work = group_->receive(data, from, channel, label);
    if (!removed) return work;
    work.wait();
    std::memset(data.data, 0, data.bytes());
    return {};
  }
  void barrier(std::string_view label) override {
    if (!strike("barrier", label)) group_->barrier(label);
  }

 private:
  // Mutation of this operation, if any.
  std::optional<Mutation> strike(const char* collective, std::string_view label) {
    Exchange exchange{name(), collective, std::string(label)};
    state_.note(exchange);
    if (struck_ || !state_.mutant || state_.mutant->exchange != exchange) return {};
    struck_ = true;
    return state_.mutant->mutation;
  }
  // Offset of this rank's part. Collective.
  std::int64_t offset_of_part(std::int64_t count) {
    std::vector<std::int64_t> counts(static_cast<std::size_t>(size()));
    group_->all_gather({&count, Dtype::kI64, {1}}, {counts.data(), Dtype::kI64, {size()}}, "counts")
        .wait();
    return std::accumulate(counts.begin(), counts.begin() + rank(), std::int64_t{0});
  }
  // Zeroes `out` except for a part copied from `in`, which may overlap it.
  static void move_part(const View& in, std::int64_t from, const View& out, std::int64_t to,
                        std::int64_t count) {
    std::size_t element = size_of(in.dtype);
    auto bytes = [&](std::int64_t elements) {
      return static_cast<std::size_t>(elements) * element;
    };
    const auto* source = static_cast<const std::byte*>(in.data) + bytes(from);
    std::vector<std::byte> part(source, source + bytes(count));
    std::memset(out.data, 0, out.bytes());
    if (count > 0)
      std::memcpy(static_cast<std::byte*>(out.data) + bytes(to), part.data(), part.size());
  }

  std::unique_ptr<Group> group_;
  MutantFilter::State& state_;
  bool struck_ = false;
};

class MutantWorld final : public World {
 public:
  MutantWorld(World& world, MutantFilter::State& state) : world_(world), state_(state) {}
  int rank() const override { return world_.rank(); }
  int size() const override { return world_.size(); }
  bool aborted() const override { return world_.aborted(); }
  Activity& activity() override { return world_.activity(); }
  std::unique_ptr<Group> make_group(std::string name, std::vector<int> members) override {
    std::unique_ptr<Group> group = world_.make_group(std::move(name), std::move(members));
    if (group->size() == 1) return group;
    return std::make_unique<MutantGroup>(std::move(group), state_);
  }

 private:
  World& world_;
  MutantFilter::State& state_;
};

}  // namespace

MutantFilter::MutantFilter(std::optional<Mutant> mutant) : state_(new State) {
  state_->mutant = std::move(mutant);
}
MutantFilter::~MutantFilter() = default;

std::unique_ptr<World> MutantFilter::wrap(World& world) {
  return std::make_unique<MutantWorld>(world, *state_);
}

std::set<Exchange> MutantFilter::exchanges() const {
  std::lock_guard lock(state_->mutex);
  return state_->exchanges;
}

}  // namespace bev::test
