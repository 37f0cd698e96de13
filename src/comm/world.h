// A rank's view of all ranks, and the start of N ranks as threads of this process.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/activity.h"
#include "comm/group.h"

namespace bev {

class World {
 public:
  virtual ~World() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Every rank of the world calls it equally often, in the same order, each for the group that it
  // is in (itself alone, where it is in none): the n-th call of each makes the n-th set of groups.
  virtual std::unique_ptr<Group> make_group(std::string name, std::vector<int> members) = 0;

  // The run has failed: whoever waits is woken with an error, and every further call throws.
  virtual bool aborted() const { return false; }

  // What this rank is doing; a hang is reported with it.
  virtual Activity& activity() { return activity_; }

 private:
  Activity activity_;
};

struct ThreadWorldOptions {
  double timeout_seconds = 600;  // of one wait; then the run fails with a report of all ranks
};

namespace detail {
void run_thread_ranks(int ranks, const ThreadWorldOptions& options, const void* body,
                      void (*call)(const void* body, World& world));
}  // namespace detail

// Runs body(world) on `ranks` threads and returns when all have ended. When one throws, the others
// are woken with a communication error and the first cause is rethrown, its rank in the message.
template <class Body>
void run_thread_ranks(int ranks, const ThreadWorldOptions& options, const Body& body) {
  detail::run_thread_ranks(ranks, options, &body, [](const void* erased, World& world) {
    (*static_cast<const Body*>(erased))(world);
  });
}

}  // namespace bev
