// What the hosts of a NCCL group tell each other about its collectives, beside the devices: whether
// all mean the same one, what each brings, and that all have come before anybody waits for the
// device. A rank that does not come is reported by the host's group, as on the CPU.
#pragma once

#include <cstdint>
#include <deque>
#include <string_view>
#include <vector>

#include "comm/host_collective.h"

namespace bev {

class NcclMeetings {
 public:
  explicit NcclMeetings(Group& host) : host_(host) {}

  // Tells the others of a collective, waiting only for answers to much older ones.
  void announce(const CollectivePost& post);
  // The same; waits for all others and returns how many elements each brings and gets.
  struct Counts {
    std::vector<std::int64_t> in, out;  // by member
  };
  Counts exchange(const CollectivePost& post);
  // All others have come to all that was announced. Error(kComm) when they mean something else.
  void finish();

 private:
  struct Meeting {
    CollectivePost post;
    std::vector<std::int64_t> mine, all;
    Work work;
  };
  void post(const CollectivePost& post);
  void check(const Meeting& meeting) const;
  void finish_oldest();

  Group& host_;
  std::deque<Meeting> open_;
};

}  // namespace bev
