// Host-side agreement on the collectives of a NCCL group: the hosts check that all members call the
// same collective, exchange counts, and confirm that all have arrived before anyone blocks on the
// device. A missing rank is reported by the host group, as on the CPU.
#pragma once

#include <cstdint>
#include <deque>
#include <string_view>
#include <vector>

#include "comm/host_collective.h"

namespace bev {

class NcclRendezvous {
 public:
  explicit NcclRendezvous(Group& host) : host_(host) {}

  // Announces a collective. Waits only if too many are open, and then for the oldest one.
  void announce(const CollectivePost& post);
  // Same, but waits for all members and returns the element counts of each.
  struct Counts {
    std::vector<std::int64_t> in, out;  // by member
  };
  Counts exchange(const CollectivePost& post);
  // Waits until all members have arrived at everything announced. Throws Error(kComm) on a
  // mismatch.
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
