#include "train/run_lock.h"

#include <unistd.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/file_lock.h"
#include "base/json_check.h"
#include "base/log.h"

namespace bev {

namespace {

using Json = nlohmann::ordered_json;

// Who holds the lock. Empty if the file has no text or not that of a lock.
struct Holder {
  std::string host, boot, begun;
  std::int64_t pid = 0;

  bool known() const { return pid > 0; }
  bool same_machine(const Holder& other) const {
    return host == other.host || (!boot.empty() && boot == other.boot);
  }
  std::string text() const {
    return concat("process ", pid, " on ", quote(host), ", begun ", quote(begun));
  }
};

// Identifies the running kernel; "" if unknown. Containers of a machine share it and its locks.
std::string boot_id() {
  constexpr char kPath[] = "/proc/sys/kernel/random/boot_id";
  return path_exists(kPath) ? std::string(trim(read_file(kPath))) : "";
}

Holder this_process() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return {name.data(), boot_id(), local_timestamp().substr(0, 19), ::getpid()};
}

// Always of the same length, so that a write replaces all of it at once.
std::string record_of(const Holder& holder, std::int64_t beat) {
  constexpr std::size_t kBytes = 512;
  Json json{{"host", holder.host},
            {"pid", holder.pid},
            {"begun", holder.begun},
            {"boot", holder.boot},
            {"beat", beat}};
  std::string text = json.dump(-1, ' ', true, Json::error_handler_t::replace);
  text.resize(std::max(kBytes - 1, text.size()), ' ');
  return text + "\n";
}

Holder parse_holder(const std::string& text) {
  Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) return {};
  auto word = [&](const char* key) {
    auto found = json.find(key);
    return found != json.end() && found->is_string() ? found->get<std::string>() : "";
  };
  auto pid = json.find("pid");
  bool number = pid != json.end() && pid->is_number_integer();
  return {word("host"), word("boot"), word("begun"), number ? pid->get<std::int64_t>() : 0};
}

[[noreturn]] void refuse(const std::string& folder, const Holder& holder,
                         const std::string& more = "") {
  BEV_FAIL(ErrorKind::kConfig, "--save ", folder, ": another run saves there (",
           holder.known() ? holder.text() : std::string("which has just begun"),
           "); wait for it, stop it, or give another folder", more);
}

// Whether the file changes within the time, which says that its holder lives. The file is opened
// anew each time, since network file systems look for changes only then.
bool beats(const std::string& path, const std::string& seen, double seconds) {
  double end = monotonic_seconds() + seconds;
  while (monotonic_seconds() < end) {
    std::this_thread::sleep_for(std::chrono::duration<double>(std::min(0.5, seconds / 4)));
    if (!path_exists(path)) return false;
    if (trim(read_file(path)) != seen) return true;
  }
  return false;
}

}  // namespace

struct RunLock::State {
  explicit State(const std::string& folder) : file(join_path(folder, kRunLockName)) {}

  FileLock file;
  Holder holder = this_process();
  std::mutex mutex;
  std::condition_variable closing;
  bool closed = false;
  std::thread heart;

  // Decides about a file that was there before.
  void take(const std::string& folder, LockResult result, double watch_seconds) {
    std::string text = file.text();
    Holder before = parse_holder(text);
    if (result == LockResult::kBusy) refuse(folder, before);
    if (!before.known()) return;
    bool kernel_knows = result == LockResult::kHeld && before.same_machine(holder);
    if (!kernel_knows) {
      log_info(concat(file.path(), ": is of ", before.text(), "; watching for ", watch_seconds,
                      " s whether that run still lives"));
      if (beats(file.path(), text, watch_seconds)) {
        refuse(folder, before, concat("; if that process is certainly gone, remove ", file.path()));
      }
    }
    log_warning(concat(file.path(), ": was left by ", before.text(),
                       ", which is gone; this run takes it over"));
  }

  void beat(double seconds) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, nullptr);
    std::unique_lock guard(mutex);
    for (std::int64_t count = 1; !closed; ++count) {
      file.write(record_of(holder, count));
      closing.wait_for(guard, std::chrono::duration<double>(seconds), [&] { return closed; });
    }
  }
};

RunLock::RunLock(const std::string& folder, const RunLockTimes& times)
    : state_(std::make_unique<State>(folder)) {
  LockResult result = state_->file.try_lock();
  state_->take(folder, result, times.watch_seconds);
  state_->file.write(record_of(state_->holder, 0));
  state_->heart = std::thread([state = state_.get(), times] { state->beat(times.beat_seconds); });
}

RunLock::~RunLock() {
  {
    std::lock_guard guard(state_->mutex);
    state_->closed = true;
  }
  state_->closing.notify_all();
  state_->heart.join();
  state_->file.remove();
}

}  // namespace bev
