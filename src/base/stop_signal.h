// SIGINT, SIGTERM and one more as a request to stop: the run finishes its step, exports, and
// reports it. A signal more than a second after the first ends the process at once.
#pragma once

#include <memory>

namespace bev {

class StopSignal {
 public:
  // Blocks the signals in this thread and in threads it starts later; construct it before any
  // other thread. `unit` names what is still finished, for the message. `also` is a signal besides
  // the two; 0: none.
  explicit StopSignal(const char* unit = "this step", int also = 0);
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  // The signal number, or 0 if none was received.
  int received() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bev
