// File written under a unique temporary name and renamed at the end: any number of processes may
// write the same file at once, and a reader sees a complete one or none.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace bev {

class StagedFile {
 public:
  // All functions throw Error(kIo) with the path and strerror.
  explicit StagedFile(const std::string& path);
  // Removes the temporary file unless it was committed.
  ~StagedFile();
  StagedFile(const StagedFile&) = delete;
  StagedFile& operator=(const StagedFile&) = delete;

  void write(std::span<const std::byte> bytes);  // buffered
  template <class T>
  void write_value(const T& value) {
    write(std::as_bytes(std::span(&value, 1)));
  }
  // size() counts the bytes written; flush() passes them to the kernel, so that a mapping of
  // temporary() sees them.
  std::size_t size() const { return size_; }
  void flush();
  const std::string& temporary() const { return temporary_; }
  // sync() calls fsync on the temporary file; commit() renames it to its final name.
  void sync();
  void commit();

 private:
  std::string path_, temporary_;
  int descriptor_ = -1;
  std::size_t size_ = 0;
  std::vector<std::byte> buffer_;
};

}  // namespace bev
