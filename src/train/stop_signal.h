// SIGINT and SIGTERM as a wish to stop: the run finishes its step, exports, and says so. A signal
// that comes more than a second after the first ends the process at once.
#pragma once

#include <memory>

namespace bev {

class StopSignal {
 public:
  // Blocks both signals in this thread and in those it starts later; construct it before any other
  // thread. `unit`: what is still finished, for the message.
  explicit StopSignal(const char* unit = "this step");
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  // The signal's number, or 0 when none has come.
  int received() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bev
