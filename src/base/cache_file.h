// On-disk key-value cache of short strings, shared by any number of processes. It never fails a
// run: a corrupt or foreign file is ignored with a warning and rewritten; if the file cannot be
// written, the cache stays in memory only, with a warning.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace bev {

class CacheFile {
 public:
  // Reads the existing entries. The folder is created by the first put().
  explicit CacheFile(std::string path);

  std::optional<std::string> find(const std::string& key) const;
  // Adds an entry and rewrites the file with the entries of this object merged with those that
  // other processes have written since. Keys and values are printable ASCII without tabs; spaces
  // are allowed.
  void put(const std::string& key, const std::string& value);

  using Entries = std::map<std::string, std::string>;
  // Serialises entries, and parses them back; nullopt if the text is incomplete or its hash
  // differs.
  static std::string format(const Entries& entries);
  static std::optional<Entries> parse(std::string_view text);

 private:
  enum class Tell : bool { kNo, kYes };
  Entries read(Tell tell) const;
  void write();

  std::string path_;
  Entries entries_;
  bool writable_ = true;
};

}  // namespace bev
