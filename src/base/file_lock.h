// Exclusive lock on a file between processes (flock). The kernel releases it when the process ends,
// for whatever reason, so it cannot be left behind; the file can.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace bev {

enum class LockResult : std::uint8_t {
  kHeld,
  kBusy,         // another process holds it
  kUnsupported,  // the file system has no such locks
};

class FileLock {
 public:
  explicit FileLock(std::string path) : path_(std::move(path)) {}
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

  // Both create the file if there is none, and throw Error(kIo) if that fails. lock() waits and is
  // never busy.
  LockResult try_lock();
  LockResult lock();

  const std::string& path() const { return path_; }
  // At most 4 KiB of the file's text, trimmed, also if another process holds the lock.
  std::string text() const;
  // Replaces the text; write errors are ignored, because it is only for messages.
  void write(std::string_view text);
  // Removes the file and releases the lock.
  void remove();

 private:
  LockResult acquire(int operation);
  void open();
  void close();

  std::string path_;
  int descriptor_ = -1;
};

}  // namespace bev
