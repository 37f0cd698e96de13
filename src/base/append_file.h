// Append-only file for logs, metrics and event files. Every write reaches the kernel at once
// (unbuffered).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace bev {

enum class OpenMode : std::uint8_t {
  kTruncate,   // start empty
  kAppend,     // keep the existing content
  kExclusive,  // must not exist yet
};

class AppendFile {
 public:
  // Throws Error(kIo) with the path and strerror.
  AppendFile(const std::string& path, OpenMode mode);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  void write(std::string_view text);
  // Writes as much as one write(2) takes, and returns how many bytes that were.
  std::size_t write_some(std::string_view text);
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int descriptor_ = -1;
};

}  // namespace bev
