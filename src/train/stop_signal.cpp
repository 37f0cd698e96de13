#include "train/stop_signal.h"

#include <atomic>
#include <csignal>
#include <ctime>
#include <thread>

#include "base/log.h"
#include "base/text.h"

namespace bev {

namespace {
sigset_t stop_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  return signals;
}
}  // namespace

struct StopSignal::State {
  std::atomic<int> received{0};
  std::atomic<bool> closing{false};
  sigset_t before{};
  std::thread watcher;

  void watch() {
    sigset_t signals = stop_signals();
    timespec wait{0, 100'000'000};
    while (!closing.load()) {
      int signal = sigtimedwait(&signals, nullptr, &wait);
      if (signal <= 0) continue;
      received.store(signal);
      log_info(concat("signal ", signal, ": stopping after this step; once more to stop at once"));
      // From here on the default action takes a second one.
      pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
      return;
    }
  }
};

StopSignal::StopSignal() : state_(std::make_unique<State>()) {
  sigset_t signals = stop_signals();
  pthread_sigmask(SIG_BLOCK, &signals, &state_->before);
  state_->watcher = std::thread([state = state_.get()] {
    state->watch();
    // Stays to take a second signal.
    while (!state->closing.load()) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  });
}

StopSignal::~StopSignal() {
  state_->closing.store(true);
  state_->watcher.join();
  pthread_sigmask(SIG_SETMASK, &state_->before, nullptr);
}

int StopSignal::received() const { return state_->received.load(); }

}  // namespace bev
