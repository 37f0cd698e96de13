#include "base/stop_signal.h"

#include <atomic>
#include <csignal>
#include <ctime>
#include <thread>

#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"

namespace bev {

namespace {
sigset_t stop_signals(int also) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, also);
  return signals;
}
}  // namespace

struct StopSignal::State {
  std::atomic<int> received{0};
  std::atomic<bool> closing{false};
  sigset_t before{};
  const char* unit;
  int also;
  std::thread watcher;

  void watch() {
    sigset_t signals = stop_signals(also);
    timespec wait{0, 100'000'000};
    while (!closing.load()) {
      int signal = sigtimedwait(&signals, nullptr, &wait);
      if (signal <= 0) continue;
      received.store(signal);
      log_info(concat("signal ", signal, ": stopping after ", unit, "; once more to stop at once"));
      // Launchers signal both the process and its group: signals within a second are the same
      // request.
      double end = monotonic_seconds() + 1;
      while (!closing.load() && monotonic_seconds() < end) {
        sigtimedwait(&signals, nullptr, &wait);
      }
      // Restores the default action for a second signal, even if signals were ignored before.
      std::signal(SIGINT, SIG_DFL);
      std::signal(SIGTERM, SIG_DFL);
      std::signal(also, SIG_DFL);
      if (!closing.load()) pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
      return;
    }
  }
};

StopSignal::StopSignal(const char* unit, int also) : state_(std::make_unique<State>()) {
  state_->unit = unit;
  state_->also = also > 0 ? also : SIGTERM;
  sigset_t signals = stop_signals(state_->also);
  pthread_sigmask(SIG_BLOCK, &signals, &state_->before);
  state_->watcher = std::thread([state = state_.get()] {
    state->watch();
    // Stays alive to receive a second signal.
    while (!state->closing.load()) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  });
}

StopSignal::~StopSignal() {
  state_->closing.store(true);
  state_->watcher.join();
  // A repeated request would end the process once the signals are unblocked, so it is consumed.
  sigset_t signals = stop_signals(state_->also);
  timespec no_wait{0, 0};
  while (received() != 0 && sigtimedwait(&signals, nullptr, &no_wait) > 0) continue;
  pthread_sigmask(SIG_SETMASK, &state_->before, nullptr);
}

int StopSignal::received() const { return state_->received.load(); }

}  // namespace bev
