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

// Makes names in the folder survive a crash of the machine, where its file system can.
void sync_folder(const std::string& path);

// Writes to `path + ".tmp"`; commit() syncs and renames. Without commit the temporary is removed.
// Much data goes past the system's cache, where it can, to a disk that is busy from the first block
// on.
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
  void use_cache(bool use);
  void write_out();

  std::string path_;
  std::string temporary_;
  int descriptor_ = -1;
  bool cached_ = true;
  std::unique_ptr<std::byte[]> memory_;
  std::span<std::byte> block_;  // of it, aligned
  std::size_t filled_ = 0;      // bytes of the block
};

// AtomicFile in one call.
void write_file(const std::string& path, std::string_view content);

}  // namespace bev
