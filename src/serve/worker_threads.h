// Threads that prepare requests: reading JSON, rendering templates and tokenizing take milliseconds
// for long prompts, which the I/O thread must not spend.
#pragma once

#include <memory>

#include "serve/http_server.h"

namespace bev {

class WorkerThreads {
 public:
  explicit WorkerThreads(int threads);
  // Drops tasks that have not begun, and joins.
  ~WorkerThreads();

  // From any thread. Tasks begin in order; they do not throw.
  void post(std::unique_ptr<IoTask> task);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bev
