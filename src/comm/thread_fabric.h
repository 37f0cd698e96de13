// Shared state of the ranks that are threads of one process: the pending waits of each rank, the
// first failure, and the abort of all waits after it.
#pragma once

#include <exception>
#include <memory>

#include "comm/activity.h"
#include "comm/hang_report.h"

namespace bev {

class ThreadFabric {
 public:
  // A blocked rank as seen by others, who call it while a WaitScope registers it.
  class Waiting {
   public:
    // Fills in what is waited for; false if it has arrived.
    virtual bool describe(WaitRecord& record) const = 0;
    virtual void wake() const = 0;

   protected:
    ~Waiting() = default;
  };

  // Registers a wait. Waiting's functions take the waiter's own locks, so enter and leave the scope
  // without holding them. Checking aborted() after entering misses no wake-up.
  class WaitScope {
   public:
    WaitScope(ThreadFabric& fabric, int rank, const Waiting& waiting);
    ~WaitScope();
    WaitScope(const WaitScope&) = delete;
    WaitScope& operator=(const WaitScope&) = delete;

   private:
    ThreadFabric& fabric_;
    int rank_;
  };

  ThreadFabric(int ranks, double timeout_seconds);
  ~ThreadFabric();

  int size() const;
  double timeout_seconds() const;  // per wait
  bool aborted() const;

  // Call before the ranks start. The activity must outlive the fabric's use of it.
  void enroll(int rank, const Activity& activity);
  // The rank's body has ended.
  void end(int rank);
  // Keeps the first failure as the cause and wakes all waiting ranks; later failures are
  // consequences.
  void fail(int rank, std::exception_ptr cause);
  // Called when the registered wait of `rank` has timed out: fails the run with a report of all
  // ranks, and throws it. Returns if what it waited for has arrived meanwhile.
  void fail_hanging(int rank);

  // Returns when every rank has ended. Logs to stderr if a rank does not end although the run has
  // failed, since a thread cannot be killed.
  void await_end();
  // Throws the first failure with its rank in the message; returns if there is none.
  void rethrow() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bev
