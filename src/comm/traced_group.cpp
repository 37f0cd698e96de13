#include "comm/traced_group.h"

#include <utility>

#include "base/clock.h"
#include "base/text.h"
#include "base/trace.h"

namespace bev {

namespace {

class TracedWork final : public Work::Pending {
 public:
  TracedWork(Trace& trace, const char* name, std::int64_t begin_ns, Work work)
      : trace_(trace), name_(name), begin_ns_(begin_ns), work_(std::move(work)) {}
  void wait() override {
    {
      TraceScope span(&trace_, {TraceKind::kWait, name_});
      work_.wait();
    }
    trace_.flight(name_, begin_ns_);
  }

 private:
  Trace& trace_;
  const char* name_;
  std::int64_t begin_ns_;
  Work work_;
};

class TracedGroup final : public Group {
 public:
  TracedGroup(std::unique_ptr<Group> group, Trace& trace) : TracedGroup(*group, trace) {
    owned_ = std::move(group);
  }

  Work all_reduce(const View& data, Reduction reduction, std::string_view label) override {
    return posted("all_reduce ", label, [&] { return group_.all_reduce(data, reduction, label); });
  }
  Work all_gather(const View& in, const View& out, std::string_view label) override {
    return posted("all_gather ", label, [&] { return group_.all_gather(in, out, label); });
  }
  Work reduce_scatter(const View& in, const View& out, std::string_view label) override {
    return posted("reduce_scatter ", label, [&] { return group_.reduce_scatter(in, out, label); });
  }
  Work broadcast(const View& data, int root, std::string_view label) override {
    return posted("broadcast ", label, [&] { return group_.broadcast(data, root, label); });
  }
  Work all_to_all(const View& in, std::span<const std::int64_t> send_counts, const View& out,
                  std::span<const std::int64_t> receive_counts, std::string_view label) override {
    return posted("all_to_all ", label,
                  [&] { return group_.all_to_all(in, send_counts, out, receive_counts, label); });
  }
  Work send(const View& data, int to, int channel, std::string_view label) override {
    return posted("send ", label, [&] { return group_.send(data, to, channel, label); });
  }
  Work receive(const View& data, int from, int channel, std::string_view label) override {
    return posted("receive ", label, [&] { return group_.receive(data, from, channel, label); });
  }
  void barrier(std::string_view label) override {
    TraceScope span(&trace_, {TraceKind::kWait, trace_.keep(concat("barrier ", label))});
    group_.barrier(label);
  }
  bool capturable() const override { return group_.capturable(); }

 private:
  TracedGroup(Group& group, Trace& trace)
      : Group(group.name(), group.rank(), {group.members().begin(), group.members().end()}),
        group_(group),
        trace_(trace) {
    if (&group.host() != &group) {
      keep_host(std::unique_ptr<Group>(new TracedGroup(group.host(), trace)));
    }
  }

  template <class Post>
  Work posted(std::string_view operation, std::string_view label, const Post& post) {
    if (!trace_.recording()) return post();
    const char* name = trace_.keep(concat(operation, label));
    std::int64_t begin_ns = monotonic_nanoseconds();
    TraceScope span(&trace_, {TraceKind::kCollective, name});
    return Work(std::make_unique<TracedWork>(trace_, name, begin_ns, post()));
  }

  std::unique_ptr<Group> owned_;
  Group& group_;
  Trace& trace_;
};

}  // namespace

std::unique_ptr<Group> TracedGroupMaker::make_group(std::unique_ptr<Group> host) {
  std::unique_ptr<Group> group = maker_.make_group(std::move(host));
  if (trace_ == nullptr || group->size() == 1) return group;
  return std::make_unique<TracedGroup>(std::move(group), *trace_);
}

}  // namespace bev
