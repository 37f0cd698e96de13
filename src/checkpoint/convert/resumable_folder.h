// Folder in which a conversion writes, OUT/NAME.saving-KEY, until all is there and it is renamed to
// OUT/NAME. The key is that of the conversion: the same one, run again after a kill, finds it and
// goes on after the last whole file; leftovers of others are removed.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/storage.h"

namespace bev {

struct WrittenFile {
  std::string name;
  std::uint64_t bytes = 0;
  std::vector<std::uint64_t> checksums = {};  // one per kBlockBytes
  std::vector<std::uint64_t> lengths = {};    // of its parts
};

class ResumableFolder {
 public:
  // `identity` is the text that the key is made of. Throws Error(kConfig) if OUT holds a checkpoint
  // already, or another process writes the same.
  ResumableFolder(Storage& storage, const std::string& out, const std::string& name,
                  const std::string& identity);
  ~ResumableFolder();
  ResumableFolder(const ResumableFolder&) = delete;
  ResumableFolder& operator=(const ResumableFolder&) = delete;

  Storage& storage() { return storage_; }
  const std::string& path() const { return path_; }
  // A file that an earlier start finished; nullopt: there is none.
  std::optional<WrittenFile> find(const std::string& name) const;
  // Records a file that is on disk. Thread safe.
  void add(const WrittenFile& file);
  // Renames the folder, and writes Megatron's tracker with this text. Returns the final path.
  std::string publish(const std::string& tracker);

 private:
  struct Journal;
  void take_back(const std::string& key);
  void clear(const std::string& out);

  Storage& storage_;
  std::string out_, name_, path_;
  bool published_ = false;
  std::unique_ptr<Journal> journal_;
};

}  // namespace bev
