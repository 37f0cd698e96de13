#include "comm/fault.h"

#include <charconv>
#include <chrono>
#include <csignal>
#include <limits>
#include <optional>
#include <thread>

#include "base/error.h"

namespace bev {

namespace {

constexpr std::string_view kForm = "rank=R,call=N,kind=throw|stall|kill";

std::int64_t parse_whole(std::string_view key, std::string_view text, std::int64_t least) {
  std::int64_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  bool fits = error == std::errc() && end == text.data() + text.size() && value >= least &&
              value <= std::numeric_limits<int>::max();
  BEV_CHECK(fits, ErrorKind::kConfig, "--inject-fault: ", key, " '", text,
            "' is not a whole number from ", least);
  return value;
}

Fault::Kind parse_kind(std::string_view text) {
  if (text == "throw") return Fault::Kind::kThrow;
  if (text == "stall") return Fault::Kind::kStall;
  if (text == "kill") return Fault::Kind::kKill;
  BEV_FAIL(ErrorKind::kConfig, "--inject-fault: kind '", text, "' is none of throw, stall, kill");
}

// Sets a value; Error(kConfig) if the key was given before.
template <class T>
void set_once(std::optional<T>& place, std::string_view key, T value) {
  BEV_CHECK(!place, ErrorKind::kConfig, "--inject-fault: ", key, " is given twice");
  place = value;
}

class FaultGroup final : public Group {
 public:
  FaultGroup(FaultWorld& world, std::unique_ptr<Group> group)
      : Group(group->name(), group->rank(), {group->members().begin(), group->members().end()}),
        world_(world),
        group_(std::move(group)) {}

  Work all_reduce(const View& data, Reduction reduction, std::string_view label) override {
    world_.count_call("all_reduce", label);
    return group_->all_reduce(data, reduction, label);
  }
  Work all_gather(const View& in, const View& out, std::string_view label) override {
    world_.count_call("all_gather", label);
    return group_->all_gather(in, out, label);
  }
  Work reduce_scatter(const View& in, const View& out, std::string_view label) override {
    world_.count_call("reduce_scatter", label);
    return group_->reduce_scatter(in, out, label);
  }
  Work broadcast(const View& data, int root, std::string_view label) override {
    world_.count_call("broadcast", label);
    return group_->broadcast(data, root, label);
  }
  Work all_to_all(const View& in, std::span<const std::int64_t> send_counts, const View& out,
                  std::span<const std::int64_t> receive_counts, std::string_view label) override {
    world_.count_call("all_to_all", label);
    return group_->all_to_all(in, send_counts, out, receive_counts, label);
  }
  Work send(const View& data, int to, int channel, std::string_view label) override {
    world_.count_call("send", label);
    return group_->send(data, to, channel, label);
  }
  Work receive(const View& data, int from, int channel, std::string_view label) override {
    world_.count_call("receive", label);
    return group_->receive(data, from, channel, label);
  }
  void barrier(std::string_view label) override {
    world_.count_call("barrier", label);
    group_->barrier(label);
  }
  std::unique_ptr<Group> make_peer_group(std::shared_ptr<PeerMemory> memory) override {
    std::unique_ptr<Group> peers = group_->make_peer_group(std::move(memory));
    return peers ? std::make_unique<FaultGroup>(world_, std::move(peers)) : nullptr;
  }

 private:
  FaultWorld& world_;
  std::unique_ptr<Group> group_;
};

}  // namespace

Fault parse_fault(std::string_view text) {
  std::optional<std::int64_t> rank, call;
  std::optional<Fault::Kind> kind;
  for (const std::string& part : split(text, ',')) {
    std::size_t equals = part.find('=');
    BEV_CHECK(equals != std::string::npos, ErrorKind::kConfig, "--inject-fault: '", part,
              "' has no '='; the form is ", kForm);
    std::string_view key = trim(std::string_view(part).substr(0, equals));
    std::string_view value = trim(std::string_view(part).substr(equals + 1));
    if (key == "rank") {
      set_once(rank, key, parse_whole(key, value, 0));
    } else if (key == "call") {
      set_once(call, key, parse_whole(key, value, 1));
    } else if (key == "kind") {
      set_once(kind, key, parse_kind(value));
    } else {
      BEV_FAIL(ErrorKind::kConfig, "--inject-fault: unknown '", key, "'; the form is ", kForm);
    }
  }
  BEV_CHECK(rank && call && kind, ErrorKind::kConfig, "--inject-fault: '", text,
            "' is not complete; the form is ", kForm);
  return {static_cast<int>(*rank), *call, *kind};
}

std::unique_ptr<Group> FaultWorld::make_group(std::string name, std::vector<int> members) {
  return std::make_unique<FaultGroup>(*this,
                                      world_.make_group(std::move(name), std::move(members)));
}

void FaultWorld::count_call(const char* collective, std::string_view label) {
  if (++calls_ != fault_.call || rank() != fault_.rank) return;
  if (fault_.kind == Fault::Kind::kKill) std::raise(SIGKILL);
  if (fault_.kind == Fault::Kind::kStall) {
    while (!aborted()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    BEV_FAIL(ErrorKind::kComm, collective, " of ", label, ": stalled until another rank failed");
  }
  BEV_FAIL(ErrorKind::kComm, "injected fault at call ", calls_, ", ", collective, " of ", label);
}

}  // namespace bev
