// File operations of a save, behind an interface so that tests can make any of them fail or stall.
// Every call throws Error(kIo) with the path and strerror.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace bev {

// A file written sequentially. The destructor closes it.
class OutputFile {
 public:
  virtual ~OutputFile() = default;
  virtual void write(std::span<const std::byte> bytes) = 0;
  // fsync: what was written survives a crash of the machine.
  virtual void sync() = 0;
};

class Storage {
 public:
  virtual ~Storage() = default;
  virtual std::unique_ptr<OutputFile> create(const std::string& path) = 0;
  virtual void make_folder(const std::string& path) = 0;
  // fsync of the folder: its names survive a crash of the machine.
  virtual void sync_folder(const std::string& path) = 0;
  // Replaces a file or an empty folder.
  virtual void rename(const std::string& from, const std::string& to) = 0;
  // Swaps two folders, atomically if the file system supports it.
  virtual void exchange(const std::string& one, const std::string& other) = 0;
  virtual void remove_tree(const std::string& path) = 0;
};

// Storage on the machine's file systems.
std::unique_ptr<Storage> make_disk_storage();

// Atomic: the new file appears complete, or the old one stays.
void replace_file(Storage& storage, const std::string& path, std::string_view content);

}  // namespace bev
