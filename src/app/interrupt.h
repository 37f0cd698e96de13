// SIGINT (Ctrl-C) as an event that a program listens to, instead of its end.
#pragma once

#include <memory>

namespace bev {

class Interrupt {
 public:
  // Blocks the signal in this thread and in threads that it starts later; construct it before any
  // other thread. Until listen() the signal still ends the process.
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  void listen();
  bool pending() const;  // a signal came since the last clear()
  void clear();
  int descriptor() const;  // readable while a signal is pending; for poll(2)

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bev
