// A world whose collectives complete as late as possible, to test overlap: a result appears when it
// is waited for and is NaN until then, and an input that changes in between is a failure. Posts and
// waits are logged.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "comm/world.h"

namespace bev::test {

struct CommEvent {
  std::string group, op, label;
  bool wait = false;  // false: a post
};

class CommLog {
 public:
  void add(CommEvent event) { events_.push_back(std::move(event)); }
  void clear() { events_.clear(); }
  const std::vector<CommEvent>& events() const { return events_; }
  // Number of posts of a group and op ("": any).
  std::int64_t posts(const std::string& group, const std::string& op = "") const {
    return count(group, op, false);
  }
  std::int64_t pending(const std::string& group, const std::string& op = "") const {
    return count(group, op, false) - count(group, op, true);
  }

 private:
  std::int64_t count(const std::string& group, const std::string& op, bool wait) const {
    return std::ranges::count_if(events_, [&](const CommEvent& event) {
      return event.group == group && (op.empty() || event.op == op) && event.wait == wait;
    });
  }
  std::vector<CommEvent> events_;
};

class LateWork final : public Work::Pending {
 public:
  LateWork(CommLog& log, CommEvent event, const View& in, const View& out)
      : log_(log),
        event_(std::move(event)),
        in_(in),
        out_(out),
        input_(bytes(in)),
        result_(out.bytes()) {
    log_.add(event_);
    event_.wait = true;
  }
  // Buffers that the collective reads and writes instead.
  View input() { return at(in_, input_); }
  View result() { return at(out_, result_); }
  // Hides the completed result. The own part of an in-place gather stays readable.
  void hide() {
    auto* begin = static_cast<std::byte*>(out_.data);
    auto* own = static_cast<std::byte*>(in_.data);
    for (std::size_t i = 0; i < out_.bytes(); ++i) {
      bool kept = begin + i >= own && begin + i < own + in_.bytes() && in_.bytes() < out_.bytes();
      if (!kept) begin[i] = std::byte{0xff};
    }
    input_ = bytes(in_);
  }
  void wait() override {
    EXPECT_EQ(std::memcmp(input_.data(), in_.data, input_.size()), 0)
        << event_.op << " of " << event_.label << ": its input changed before it was waited for";
    std::memcpy(out_.data, result_.data(), result_.size());
    log_.add(event_);
  }

 private:
  static std::vector<std::byte> bytes(const View& view) {
    const auto* data = static_cast<const std::byte*>(view.data);
    return {data, data + view.bytes()};
  }
  static View at(View view, std::vector<std::byte>& memory) {
    view.data = memory.data();
    return view;
  }
  CommLog& log_;
  CommEvent event_;
  View in_, out_;
  std::vector<std::byte> input_, result_;
};

class LateGroup final : public Group {
 public:
  LateGroup(std::unique_ptr<Group> group, CommLog& log)
      : Group(group->name(), group->rank(), {group->members().begin(), group->members().end()}),
        group_(std::move(group)),
        log_(log) {}

  Work all_reduce(const View& data, Reduction reduction, std::string_view label) override {
    return late("all_reduce", label, data, data, [&](const View& in, const View& out) {
      std::memcpy(out.data, in.data, in.bytes());
      group_->all_reduce(out, reduction, label).wait();
    });
  }
  Work all_gather(const View& in, const View& out, std::string_view label) override {
    return late("all_gather", label, in, out, [&](const View& from, const View& to) {
      group_->all_gather(from, to, label).wait();
    });
  }
  Work reduce_scatter(const View& in, const View& out, std::string_view label) override {
    return late("reduce_scatter", label, in, out, [&](const View& from, const View& to) {
      group_->reduce_scatter(from, to, label).wait();
    });
  }
  Work broadcast(const View& data, int root, std::string_view label) override {
    return late("broadcast", label, data, data, [&](const View& in, const View& out) {
      std::memcpy(out.data, in.data, in.bytes());
      group_->broadcast(out, root, label).wait();
    });
  }
  Work all_to_all(const View& in, std::span<const std::int64_t> send, const View& out,
                  std::span<const std::int64_t> receive, std::string_view label) override {
    return late("all_to_all", label, in, out, [&](const View& from, const View& to) {
      group_->all_to_all(from, send, to, receive, label).wait();
    });
  }
  Work send(const View& data, int to, int channel, std::string_view label) override {
    return group_->send(data, to, channel, label);
  }
  Work receive(const View& data, int from, int channel, std::string_view label) override {
    return group_->receive(data, from, channel, label);
  }
  void barrier(std::string_view label) override { group_->barrier(label); }

 private:
  template <class F>
  Work late(const char* op, std::string_view label, const View& in, const View& out, const F& run) {
    auto work =
        std::make_unique<LateWork>(log_, CommEvent{name(), op, std::string(label)}, in, out);
    run(work->input(), work->result());
    work->hide();
    return Work(std::move(work));
  }
  std::unique_ptr<Group> group_;
  CommLog& log_;
};

class LateWorld final : public World {
 public:
  explicit LateWorld(World& world) : world_(world) {}
  int rank() const override { return world_.rank(); }
  int size() const override { return world_.size(); }
  std::unique_ptr<Group> make_group(std::string name, std::vector<int> members) override {
    std::unique_ptr<Group> group = world_.make_group(std::move(name), std::move(members));
    if (group->size() == 1) return group;
    return std::make_unique<LateGroup>(std::move(group), log_);
  }
  CommLog& log() { return log_; }

 private:
  World& world_;
  CommLog log_;
};

}  // namespace bev::test
