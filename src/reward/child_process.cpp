#include "reward/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>

#include "base/clock.h"
#include "base/error.h"

namespace bev {

namespace {

// What the new process needs, made before it starts: between fork and exec only system calls are
// safe.
struct Plan {
  std::vector<char*> words;
  const char* folder = nullptr;
  int channel = -1;  // becomes standard input and output; -1: /dev/null
  bool confined = false;
  rlim_t cpu_s = 0, memory_bytes = 0;
};

void set_limit(int which, rlim_t value) {
  rlimit limit{value, value};
  setrlimit(static_cast<__rlimit_resource_t>(which), &limit);
}

void set_limits(const Plan& plan) {
  constexpr rlim_t kFileBytes = rlim_t{64} << 20, kFiles = 64, kProcesses = 64;
  set_limit(RLIMIT_CORE, 0);
  set_limit(RLIMIT_FSIZE, kFileBytes);
  set_limit(RLIMIT_NOFILE, kFiles);
  set_limit(RLIMIT_NPROC, kProcesses);
  if (plan.cpu_s > 0) set_limit(RLIMIT_CPU, plan.cpu_s);
  if (plan.memory_bytes > 0) set_limit(RLIMIT_AS, plan.memory_bytes);
}

[[noreturn]] void become(const Plan& plan) {
  constexpr int kNotFound = 127;
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  for (int signal : {SIGINT, SIGTERM, SIGPIPE}) ::signal(signal, SIG_DFL);
  int nothing = open("/dev/null", O_RDWR);
  dup2(plan.channel >= 0 ? plan.channel : nothing, 0);
  dup2(plan.channel >= 0 ? plan.channel : nothing, 1);
  if (plan.confined) dup2(nothing, 2);
  syscall(SYS_close_range, 3U, ~0U, 0U);
  if (plan.folder == nullptr || chdir(plan.folder) == 0) {
    if (plan.confined) set_limits(plan);
    execvp(plan.words[0], plan.words.data());
  }
  for (;;) syscall(SYS_exit_group, kNotFound);
}

// fork(), perhaps into new namespaces.
int start(const Plan& plan, unsigned long flags) {
  long process = syscall(SYS_clone, flags | SIGCHLD, nullptr, nullptr, nullptr, nullptr);
  if (process == 0) become(plan);
  return static_cast<int>(process);
}

constexpr unsigned long kNamespaces = CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWPID | CLONE_NEWIPC;

int wait_for(int process, int options, int& status) {
  int result = 0;
  do {
    result = waitpid(process, &status, options);
  } while (result < 0 && errno == EINTR);
  return result;
}

}  // namespace

ChildProcess::ChildProcess(const ChildOptions& options) {
  Plan plan;
  for (const std::string& word : options.words)
    plan.words.push_back(const_cast<char*>(word.data()));
  plan.words.push_back(nullptr);
  if (!options.folder.empty()) plan.folder = options.folder.c_str();
  plan.confined = options.confined;
  plan.cpu_s = static_cast<rlim_t>(std::ceil(options.cpu_s));
  plan.memory_bytes = static_cast<rlim_t>(options.memory_mb) << 20;
  std::array<int, 2> ends = {-1, -1};
  if (options.speaks) {
    int made = socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data());
    BEV_CHECK(made == 0, ErrorKind::kIo, options.words[0], ": ", strerror(errno));
    plan.channel = ends[1];
  }
  process_ = start(plan, options.isolated ? kNamespaces : 0);
  int why = errno;
  if (options.speaks) close(ends[1]);
  socket_ = ends[0];
  if (process_ < 0 && socket_ >= 0) close(socket_);
  BEV_CHECK(process_ > 0, ErrorKind::kIo, options.words[0], ": cannot be started: ", strerror(why));
  if (socket_ >= 0) fcntl(socket_, F_SETFL, O_NONBLOCK);
  setpgid(process_, process_);
}

ChildProcess::~ChildProcess() {
  if (socket_ >= 0) close(socket_);
  kill(-process_, SIGKILL);
  if (ended_) return;
  kill(process_, SIGKILL);
  wait_for(process_, 0, status_);
}

bool ChildProcess::ended(double seconds) {
  const double until = monotonic_seconds() + seconds;
  while (!ended_) {
    ended_ = wait_for(process_, WNOHANG, status_) != 0;
    double left = until - monotonic_seconds();
    if (ended_ || left <= 0) break;
    poll(nullptr, 0, static_cast<int>(std::clamp(left * 1000, 1.0, 5.0)));
  }
  return ended_;
}

bool ChildProcess::succeeded() const { return WIFEXITED(status_) && WEXITSTATUS(status_) == 0; }

std::string ChildProcess::end_text() const {
  if (WIFSIGNALED(status_)) return concat("signal ", WTERMSIG(status_));
  return concat("exit code ", WEXITSTATUS(status_));
}

std::string isolation_problem() {
  std::string word = "true";
  Plan plan;
  plan.words = {word.data(), nullptr};
  plan.confined = true;
  int process = start(plan, kNamespaces);
  if (process < 0) return strerror(errno);
  int status = 0;
  wait_for(process, 0, status);
  return "";
}

}  // namespace bev
