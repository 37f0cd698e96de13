// Files: read whole, map read-only, and write so that a reader sees the old file or the new one,
// never half.
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
// Creates the folder and its parents; existing is fine.
void make_directories(const std::string& path);
// Names (not paths) of the entries of a folder, sorted.
std::vector<std::string> list_directory(const std::string& path);

// The whole file; Error of kind io naming the path and the system's reason.
std::string read_file(const std::string& path);

// Read-only memory map of a whole file (an empty file gives an empty span).
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

// Bytes of a mapping that are not looked at again soon: their whole pages count no longer as this
// process's memory. They can be read again.
void forget_pages(std::span<const std::byte> bytes);

// Makes names in the folder survive a crash of the machine, where its file system can.
void sync_folder(const std::string& path);

// A new file, written from its beginning. Whole aligned blocks go to the disk past the page cache,
// which costs the processor nearly nothing; from the first other write on, and where the file
// system cannot, through it. Error of kind io naming the path and the system's reason.
class DiskFile {
 public:
  static constexpr std::size_t kAlignment = 4096;  // of a block's address and size

  explicit DiskFile(const std::string& path);
  ~DiskFile();
  DiskFile(const DiskFile&) = delete;
  DiskFile& operator=(const DiskFile&) = delete;

  void write(std::span<const std::byte> bytes);
  // What was written survives a crash of the machine.
  void sync();
  void close();

 private:
  int open(int more_flags) const;
  void leave_direct();

  std::string path_;
  int descriptor_;
  bool direct_;
};

// Writes to `path + ".tmp"`, much data in blocks that DiskFile likes; commit() syncs and renames.
// Without commit the temporary is removed.
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
  std::unique_ptr<DiskFile> file_;  // null once it is in place
  std::unique_ptr<std::byte[]> memory_;
  std::span<std::byte> block_;  // of it, aligned
  std::size_t filled_ = 0;      // bytes of the block
};

// AtomicFile in one call.
void write_file(const std::string& path, std::string_view content);

}  // namespace bev
