// Lock of the folder that a run saves to: DIR/run.lock names the run that writes there. It is held
// by process 0 on behalf of all processes of the run.
//
// On one machine the kernel knows whether the holder lives (flock), whatever became of its process
// id. Machines that share the folder need not share the kernel's locks, so the holder also rewrites
// the file every few seconds, and a run on another machine watches whether it does.
#pragma once

#include <memory>
#include <string>

namespace bev {

struct RunLockTimes {
  double beat_seconds = 10;   // between two heartbeats
  double watch_seconds = 35;  // a holder on another machine without a heartbeat for so long is gone
};

inline constexpr char kRunLockName[] = "run.lock";

class RunLock {
 public:
  // Throws Error(kConfig) naming the holder if another run lives. A file that a killed run left is
  // reported and taken over.
  explicit RunLock(const std::string& folder, const RunLockTimes& times = {});
  // Removes the file.
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bev
