#include "app/sigbus_handler.h"

#include <fcntl.h>
#include <unistd.h>

#include <charconv>
#include <csignal>
#include <cstdint>
#include <string_view>

#include "app/command.h"
#include "app/end_process.h"

namespace bev {

namespace {

// These functions run inside of the signal handler: they neither allocate nor throw.

void say(std::string_view text) {
  while (!text.empty()) {
    ssize_t put = ::write(STDERR_FILENO, text.data(), text.size());
    if (put <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(put));
  }
}

// Given "7f00a000-7f00c000 r--p 00000000 fe:00 1234   /path", returns the path if the range
// contains the address and belongs to a file.
std::string_view path_in(std::string_view line, std::uintptr_t address) {
  std::uintptr_t begin = 0, end = 0;
  const char* last = line.data() + line.size();
  auto first = std::from_chars(line.data(), last, begin, 16);
  if (first.ptr == last || *first.ptr != '-') return {};
  auto second = std::from_chars(first.ptr + 1, last, end, 16);
  if (second.ec != std::errc() || address < begin || address >= end) return {};
  std::size_t slash = line.find('/');
  return slash == line.npos ? std::string_view() : line.substr(slash);
}

// Reads /proc/self/maps line by line. A line longer than the buffer is split into several, none of
// which matches.
template <std::size_t kBytes>
std::string_view mapped_path(std::uintptr_t address, char (&buffer)[kBytes]) {
  int descriptor = ::open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return {};
  std::size_t filled = 0;
  std::string_view path;
  while (path.empty()) {
    ssize_t got = ::read(descriptor, buffer + filled, kBytes - filled);
    if (got <= 0) break;
    filled += static_cast<std::size_t>(got);
    std::string_view text(buffer, filled);
    for (std::size_t end; path.empty() && (end = text.find('\n')) != text.npos;) {
      path = path_in(text.substr(0, end), address);
      text.remove_prefix(end + 1);
    }
    if (!path.empty()) break;
    if (text.size() == kBytes) text = {};
    std::char_traits<char>::move(buffer, text.data(), text.size());
    filled = text.size();
  }
  ::close(descriptor);
  return path;
}

void report(int signal, siginfo_t* info, void*) {
  char buffer[8192];
  std::string_view path = mapped_path(reinterpret_cast<std::uintptr_t>(info->si_addr), buffer);
  if (path.empty()) {  // no file: the default action handles it when the instruction runs again
    std::signal(signal, SIG_DFL);
    return;
  }
  say("error: ");
  say(path);
  say(": was cut while it was in use, or its disk failed; files in use may be replaced by renaming "
      "others over them, not written to\n");
  end_process(kExitInput);
}

}  // namespace

void install_sigbus_handler() {
  struct sigaction action {};
  action.sa_sigaction = report;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGBUS, &action, nullptr);
}

}  // namespace bev
