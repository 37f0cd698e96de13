#include "app/interrupt.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <ctime>
#include <thread>

#include "base/error.h"

namespace bev {

namespace {
sigset_t interrupt_signal() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  return signals;
}
}  // namespace

struct Interrupt::State {
  std::atomic<bool> listening{false}, pending{false}, closing{false};
  int event = -1;
  sigset_t before{};
  std::thread watcher;

  void watch() {
    sigset_t signals = interrupt_signal();
    timespec wait{0, 50'000'000};
    while (!closing) {
      if (sigtimedwait(&signals, nullptr, &wait) != SIGINT) continue;
      if (!listening) {
        std::signal(SIGINT, SIG_DFL);
        pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
        std::raise(SIGINT);
      }
      pending = true;
      ::eventfd_write(event, 1);
    }
  }
};

Interrupt::Interrupt() : state_(std::make_unique<State>()) {
  state_->event = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  BEV_CHECK(state_->event >= 0, ErrorKind::kIo, "Ctrl-C: no eventfd for the signal");
  sigset_t signals = interrupt_signal();
  pthread_sigmask(SIG_BLOCK, &signals, &state_->before);
  state_->watcher = std::thread([state = state_.get()] { state->watch(); });
}

Interrupt::~Interrupt() {
  state_->closing = true;
  state_->watcher.join();
  pthread_sigmask(SIG_SETMASK, &state_->before, nullptr);
  ::close(state_->event);
}

void Interrupt::listen() { state_->listening = true; }
bool Interrupt::pending() const { return state_->pending; }

void Interrupt::clear() {
  eventfd_t count;
  ::eventfd_read(state_->event, &count);
  state_->pending = false;
}

int Interrupt::descriptor() const { return state_->event; }

}  // namespace bev
