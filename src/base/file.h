// File I/O: whole-file read, read-only memory-mapped files, and atomic writes (a reader sees the
// old file or the new one, never a partial one).
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace bev {

bool path_exists(const std::string& path);
bool is_directory(const std::string& path);
std::string join_path(std::string_view folder, std::string_view name);
std::string parent_path(const std::string& path);
// Creates the folder and its parents; an existing folder is not an error.
void make_directories(const std::string& path);
// Sorted names (not paths) of a folder's entries.
std::vector<std::string> list_directory(const std::string& path);

// Content of a regular file; throws Error(kInput) with the path and strerror.
std::string read_file(const std::string& path);

// Read-only memory-mapped file (an empty file gives an empty span).
class MappedFile {
 public:
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return bytes_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::span<const std::byte> bytes_;
};

// Drops the whole pages of a mapping from this process's resident memory (MADV_DONTNEED). The bytes
// stay readable: the next access faults them in again.
void forget_pages(std::span<const std::byte> bytes);

// fsync of a folder, so that renames and new names in it survive a crash; best effort.
void sync_folder(const std::string& path);

// A new file, written sequentially. Aligned blocks bypass the page cache (O_DIRECT), which costs
// almost no CPU time; from the first unaligned write on, or if the file system does not support it,
// writes go through the page cache. Throws Error(kIo) with the path and strerror.
class DiskFile {
 public:
  static constexpr std::size_t kAlignment = 4096;  // required of a block's address and size

  explicit DiskFile(const std::string& path);
  ~DiskFile();
  DiskFile(const DiskFile&) = delete;
  DiskFile& operator=(const DiskFile&) = delete;

  void write(std::span<const std::byte> bytes);
  // fsync: everything written so far survives a crash of the machine.
  void sync();
  void close();

 private:
  int open(int more_flags) const;
  void leave_direct();

  std::string path_;
  int descriptor_;
  bool direct_;
};

// Writes to `path + ".tmp"` through an aligned 8 MiB buffer; commit() calls fsync and renames.
// Without commit() the destructor removes the temporary file.
class AtomicFile {
 public:
  explicit AtomicFile(const std::string& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, std::size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  void commit();

 private:
  std::string path_;
  std::string temporary_;
  std::unique_ptr<DiskFile> file_;  // null after commit()
  std::unique_ptr<std::byte[]> memory_;
  std::span<std::byte> block_;  // aligned part of memory_
  std::size_t filled_ = 0;      // bytes of block_ in use
};

// AtomicFile in one call.
void write_file(const std::string& path, std::string_view content);

}  // namespace bev
