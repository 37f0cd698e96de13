// A file being written beside its final name, under one that no other process uses: any number of
// them may write the same file at once, and a reader sees a whole one or none.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace bev {

class StagedFile {
 public:
  // Error(kIo) naming the path and the system's reason, here and below.
  explicit StagedFile(const std::string& path);
  // Removes what was not committed.
  ~StagedFile();
  StagedFile(const StagedFile&) = delete;
  StagedFile& operator=(const StagedFile&) = delete;

  void write(std::span<const std::byte> bytes);  // buffered
  template <class T>
  void write_value(const T& value) {
    write(std::as_bytes(std::span(&value, 1)));
  }
  // Bytes written so far; flush() hands them to the operating system, where a map of temporary()
  // sees them.
  std::size_t size() const { return size_; }
  void flush();
  const std::string& temporary() const { return temporary_; }
  // Makes it durable under the temporary name; then renames it. Only the second shows the file.
  void sync();
  void commit();

 private:
  std::string path_, temporary_;
  int descriptor_ = -1;
  std::size_t size_ = 0;
  std::vector<std::byte> buffer_;
};

}  // namespace bev
