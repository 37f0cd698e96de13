#include "comm/thread_fabric.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"

namespace bev {

namespace {
// Time that ranks get for unwinding before the failure is reported without them.
constexpr double kUnwindSeconds = 10;
// Clocks count nanoseconds in 64 bits, so longer timeouts would overflow.
constexpr double kLongestSeconds = 1e9;
}  // namespace

struct ThreadFabric::State {
  State(int count, double timeout)
      : timeout_seconds(std::min(timeout, kLongestSeconds)),
        ranks(static_cast<std::size_t>(count)) {}

  struct Rank {
    std::mutex mutex;
    const Activity* activity = nullptr;
    const Waiting* waiting = nullptr;
    double waits_since = 0;
    bool ended = false;
  };

  double timeout_seconds;
  std::vector<Rank> ranks;
  std::atomic<bool> aborted{false};

  mutable std::mutex mutex;  // guards the following; never held together with a rank's mutex
  std::condition_variable changed;
  std::exception_ptr cause;
  int failed_rank = -1;
  std::size_t ended_count = 0;

  Rank& rank(int index) { return ranks[static_cast<std::size_t>(index)]; }
  WaitRecord record_of(int index);
  std::string running();  // names of the ranks that have not ended
};

WaitRecord ThreadFabric::State::record_of(int index) {
  Rank& of = rank(index);
  std::lock_guard lock(of.mutex);
  WaitRecord record;
  record.rank = index;
  record.doing = of.activity->snapshot();
  record.ended = of.ended;
  if (of.waiting != nullptr && of.waiting->describe(record)) {
    record.seconds = monotonic_seconds() - of.waits_since;
  }
  return record;
}

std::string ThreadFabric::State::running() {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    std::lock_guard lock(ranks[i].mutex);
    if (!ranks[i].ended) names.push_back(concat("rank ", i));
  }
  return join(names, ", ");
}

ThreadFabric::ThreadFabric(int ranks, double timeout_seconds)
    : state_(std::make_unique<State>(ranks, timeout_seconds)) {}
ThreadFabric::~ThreadFabric() = default;

int ThreadFabric::size() const { return static_cast<int>(state_->ranks.size()); }
double ThreadFabric::timeout_seconds() const { return state_->timeout_seconds; }
bool ThreadFabric::aborted() const { return state_->aborted.load(); }

ThreadFabric::WaitScope::WaitScope(ThreadFabric& fabric, int rank, const Waiting& waiting)
    : fabric_(fabric), rank_(rank) {
  State::Rank& state = fabric_.state_->rank(rank_);
  std::lock_guard lock(state.mutex);
  state.waiting = &waiting;
  state.waits_since = monotonic_seconds();
}

ThreadFabric::WaitScope::~WaitScope() {
  State::Rank& state = fabric_.state_->rank(rank_);
  std::lock_guard lock(state.mutex);
  state.waiting = nullptr;
}

void ThreadFabric::enroll(int rank, const Activity& activity) {
  state_->rank(rank).activity = &activity;
}

void ThreadFabric::end(int rank) {
  {
    std::lock_guard lock(state_->rank(rank).mutex);
    state_->rank(rank).ended = true;
  }
  std::lock_guard lock(state_->mutex);
  ++state_->ended_count;
  state_->changed.notify_all();
}

void ThreadFabric::fail(int rank, std::exception_ptr cause) {
  {
    std::lock_guard lock(state_->mutex);
    if (state_->cause) return;
    state_->cause = std::move(cause);
    state_->failed_rank = rank;
    state_->aborted.store(true);
    state_->changed.notify_all();
  }
  for (State::Rank& other : state_->ranks) {
    std::lock_guard lock(other.mutex);
    if (other.waiting != nullptr) other.waiting->wake();
  }
}

void ThreadFabric::fail_hanging(int rank) {
  std::vector<WaitRecord> records;
  for (int i = 0; i < size(); ++i) records.push_back(state_->record_of(i));
  const WaitRecord& mine = records[static_cast<std::size_t>(rank)];
  if (mine.collective.empty()) return;
  Error error(ErrorKind::kComm,
              concat(mine.collective, " of ", mine.label, " in group ", mine.group, " has waited ",
                     fmt::format("{:.2f}", mine.seconds), " s for ", ranks_text(mine.absent), "\n",
                     hang_report(records)));
  fail(rank, std::make_exception_ptr(error));
  throw error;
}

void ThreadFabric::await_end() {
  auto all_ended = [&] { return state_->ended_count == state_->ranks.size(); };
  {
    std::unique_lock lock(state_->mutex);
    state_->changed.wait(lock, [&] { return all_ended() || state_->cause; });
    std::chrono::duration<double> grace(std::min(kUnwindSeconds, state_->timeout_seconds));
    if (state_->changed.wait_for(lock, grace, all_ended)) return;
  }
  std::string cause = "the run has failed";
  try {
    rethrow();
  } catch (const std::exception& failure) {
    cause = failure.what();
  } catch (...) {
  }
  log_error(concat(cause, "\nwaiting for ", state_->running(), " to end"));
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, all_ended);
}

void ThreadFabric::rethrow() const {
  std::unique_lock lock(state_->mutex);
  if (!state_->cause) return;
  std::exception_ptr cause = state_->cause;
  int rank = state_->failed_rank;
  lock.unlock();
  if (size() == 1) std::rethrow_exception(cause);
  try {
    std::rethrow_exception(cause);
  } catch (const Error& error) {
    throw Error(concat("rank ", rank, ": "), error);
  }
}

}  // namespace bev
