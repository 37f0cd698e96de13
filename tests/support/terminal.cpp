#include "tests/support/terminal.h"

#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>

#include "base/text.h"

namespace bev {

Terminal::Terminal(const TempFolder& folder, const std::string& command) {
  std::string line = concat("cd ", folder.path(), " && exec ", command);
  child_ = ::forkpty(&master_, nullptr, nullptr, nullptr);
  if (child_ != 0) return;
  ::setenv("TERM", "xterm", 1);
  ::execl("/bin/sh", "sh", "-c", line.c_str(), nullptr);
  ::_exit(127);
}

Terminal::~Terminal() {
  if (child_ > 0) {
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
  }
  ::close(master_);
}

void Terminal::type(std::string_view keys) {
  [[maybe_unused]] ssize_t put = ::write(master_, keys.data(), keys.size());
}

bool Terminal::read_more() {
  pollfd watched = {master_, POLLIN, 0};
  if (::poll(&watched, 1, 30'000) <= 0) return false;
  std::array<char, 4096> part;
  ssize_t got = ::read(master_, part.data(), part.size());
  if (got <= 0) return false;  // EIO: the program has ended
  output_.append(part.data(), static_cast<std::size_t>(got));
  return true;
}

bool Terminal::wait_for(std::string_view text) {
  std::size_t at;
  while ((at = output_.find(text, seen_)) == std::string::npos) {
    if (!read_more()) return false;
  }
  seen_ = at + text.size();
  return true;
}

bool Terminal::wait_for_bytes(std::size_t count) {
  while (output_.size() < seen_ + count) {
    if (!read_more()) return false;
  }
  return true;
}

int Terminal::finish() {
  while (read_more()) continue;
  int status = 0;
  ::waitpid(child_, &status, 0);
  child_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace bev
