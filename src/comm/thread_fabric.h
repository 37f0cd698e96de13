// What the threads that are ranks share besides their groups: who waits for what, who failed first,
// and the end of all waits once one has.
#pragma once

#include <exception>
#include <memory>

#include "comm/activity.h"
#include "comm/hang_report.h"

namespace bev {

class ThreadFabric {
 public:
  // A wait of one rank, as others see it. They call it while the rank is registered by a WaitScope.
  class Waiting {
   public:
    // Fills in what is waited for; false when it has come.
    virtual bool describe(WaitRecord& record) const = 0;
    virtual void wake() const = 0;

   protected:
    ~Waiting() = default;
  };

  // Registers a wait. The calls above take the waiter's own locks, so it is entered and left
  // without them; whoever looks at aborted() after entering it misses no wake.
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
  double timeout_seconds() const;  // of one wait
  bool aborted() const;

  // Before the ranks start. The activity must outlive the fabric's use.
  void enroll(int rank, const Activity& activity);
  // The rank's body is over.
  void end(int rank);
  // The first failure is kept as the cause and wakes all ranks that wait; later ones follow from
  // it.
  void fail(int rank, std::exception_ptr cause);
  // The registered wait of `rank` has lasted for the timeout: fails the run with a report of all
  // ranks, and throws it. Returns when what was waited for has come after all.
  void fail_hanging(int rank);

  // Returns when every rank has ended. Says so on stderr when one does not end although the run
  // has failed: a thread cannot be stopped from outside.
  void await_end();
  // Throws the first failure, its rank in the message; returns when there is none.
  void rethrow() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bev
