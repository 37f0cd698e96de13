// A file that grows: logs, metrics, event files. Every write reaches the operating system at once.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace bev {

enum class OpenMode : std::uint8_t {
  kTruncate,   // start empty
  kAppend,     // keep what is there
  kExclusive,  // must not exist yet
};

class AppendFile {
 public:
  // Error of kind io naming the path and the system's reason.
  AppendFile(const std::string& path, OpenMode mode);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  void write(std::string_view text);
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int descriptor_ = -1;
};

}  // namespace bev
