// The file operations of a save, behind an interface, so that tests can let any of them fail or
// take its time. Every call throws Error(kIo) naming the path and the system's reason.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace bev {

// A file being written from its beginning. Destroying it closes it.
class OutputFile {
 public:
  virtual ~OutputFile() = default;
  virtual void write(std::span<const std::byte> bytes) = 0;
  // What was written survives a crash of the machine.
  virtual void sync() = 0;
};

class Storage {
 public:
  virtual ~Storage() = default;
  virtual std::unique_ptr<OutputFile> create(const std::string& path) = 0;
  virtual void make_folder(const std::string& path) = 0;
  // Names in the folder survive a crash of the machine.
  virtual void sync_folder(const std::string& path) = 0;
  // Replaces a file or an empty folder.
  virtual void rename(const std::string& from, const std::string& to) = 0;
  // Of two folders, in one instant where the file system can.
  virtual void exchange(const std::string& one, const std::string& other) = 0;
  virtual void remove_tree(const std::string& path) = 0;
};

// The machine's own.
std::unique_ptr<Storage> make_disk_storage();

// The file appears whole, or what was there before stays.
void replace_file(Storage& storage, const std::string& path, std::string_view content);

}  // namespace bev
