// A rank's view of all ranks, and the start of N ranks as threads of this process.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "comm/activity.h"
#include "comm/group.h"

namespace bev {

class World {
 public:
  virtual ~World() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Collective: every rank of the world makes the same number of calls in the same order, each with
  // the group it belongs to (itself alone if it is in none). The n-th calls of all ranks form the
  // n-th set of groups.
  virtual std::unique_ptr<Group> make_group(std::string name, std::vector<int> members) = 0;

  // True if the run has failed: waiting ranks are woken with an error, and every further call
  // throws.
  virtual bool aborted() const { return false; }

  // Current activity of this rank, for hang reports.
  virtual Activity& activity() { return activity_; }

 private:
  Activity activity_;
};

struct ThreadWorldOptions {
  double timeout_seconds = 600;  // per wait; then the run fails with a report of all ranks
};

// Runs body(world) on `ranks` threads and returns when all have ended. If one throws, the others
// are woken with Error(kComm) and the first cause is rethrown with its rank in the message.
void run_thread_ranks(int ranks, const ThreadWorldOptions& options,
                      FunctionRef<void(World& world)> body);

}  // namespace bev
