// Group over messages (several processes): every member sends its part directly to those that need
// it, and reductions add in rank order, so results are bit-equal to the thread transport's.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/group.h"
#include "comm/process/mailroom.h"

namespace bev {

class MessageGroup : public Group {
 public:
  // `number` identifies the group: equal on all members, unique among the groups of each member.
  MessageGroup(std::string name, int rank, std::vector<int> members, std::uint32_t number,
               Mailroom& room);

  Work all_reduce(const View& data, Reduction reduction, std::string_view label) override;
  Work all_gather(const View& in, const View& out, std::string_view label) override;
  Work reduce_scatter(const View& in, const View& out, std::string_view label) override;
  Work broadcast(const View& data, int root, std::string_view label) override;
  Work all_to_all(const View& in, std::span<const std::int64_t> send_counts, const View& out,
                  std::span<const std::int64_t> receive_counts, std::string_view label) override;
  Work send(const View& data, int to, int channel, std::string_view label) override;
  Work receive(const View& data, int from, int channel, std::string_view label) override;
  void barrier(std::string_view label) override;

 private:
  using Route = std::pair<int, int>;  // (member, channel)

  std::uint32_t number_;
  Mailroom& room_;
  std::uint64_t calls_ = 0;  // collective calls so far
  std::map<Route, std::uint64_t> sent_, received_;
};

}  // namespace bev
