// A program in a process group of its own, which ends with this object, with all that it started.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace bev {

struct ChildOptions {
  std::vector<std::string> words;  // the program and its arguments; searched in PATH
  std::string folder;              // where it runs; "": here
  bool speaks = false;             // standard input and output are a socket; else nothing
  // Tests of code that nobody has read: limits of time and memory, few processes and files, and,
  // unless allowed without, namespaces of its own for users, processes and the network, so that it
  // reaches no network and leaves no process.
  bool confined = false, isolated = false;
  double cpu_s = 0;
  std::int64_t memory_mb = 0;
};

class ChildProcess {
 public:
  // Throws Error(kIo) if no process can be started. A program that is not there ends with 127.
  explicit ChildProcess(const ChildOptions& options);
  // Kills the group and waits for the process.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // Non-blocking; -1 if it does not speak.
  int socket() const { return socket_; }
  // True once the process has ended; waits for it up to `seconds`.
  bool ended(double seconds = 0);
  // Both for a process that has ended: whether it returned 0; "exit code 3", "signal 9".
  bool succeeded() const;
  std::string end_text() const;

 private:
  int process_ = -1, socket_ = -1, status_ = 0;
  bool ended_ = false;
};

// Why processes cannot be isolated on this machine; "" if they can.
std::string isolation_problem();

}  // namespace bev
