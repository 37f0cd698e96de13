#include "serve/worker_threads.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace bev {

struct WorkerThreads::State {
  std::mutex mutex;
  std::condition_variable arrived;
  std::deque<std::unique_ptr<IoTask>> tasks;
  bool closing = false;
  std::vector<std::thread> threads;

  void work() {
    std::unique_lock lock(mutex);
    while (true) {
      arrived.wait(lock, [&] { return closing || !tasks.empty(); });
      if (closing) return;
      std::unique_ptr<IoTask> task = std::move(tasks.front());
      tasks.pop_front();
      lock.unlock();
      task->run();
      task.reset();
      lock.lock();
    }
  }
};

WorkerThreads::WorkerThreads(int threads) : state_(std::make_unique<State>()) {
  for (int i = 0; i < threads; ++i) {
    state_->threads.emplace_back([state = state_.get()] { state->work(); });
  }
}

WorkerThreads::~WorkerThreads() {
  {
    std::lock_guard lock(state_->mutex);
    state_->closing = true;
    state_->arrived.notify_all();
  }
  for (std::thread& thread : state_->threads) thread.join();
}

void WorkerThreads::post(std::unique_ptr<IoTask> task) {
  std::lock_guard lock(state_->mutex);
  state_->tasks.push_back(std::move(task));
  state_->arrived.notify_one();
}

}  // namespace bev
