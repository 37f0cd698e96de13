// A cache on disk of short texts by key, shared by any number of processes. It never fails a run: a
// file that is damaged or not ours is left aside with a warning and replaced, one that cannot be
// written is given up with a warning.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace bev {

class CacheFile {
 public:
  // Reads what is there; its folder is made when there is something to write.
  explicit CacheFile(std::string path);

  std::optional<std::string> find(const std::string& key) const;
  // Adds an entry and writes the file: all entries of this object, and those that others have
  // written since. Keys and values are printable ASCII without tabs; a key may have spaces.
  void put(const std::string& key, const std::string& value);

  using Entries = std::map<std::string, std::string>;
  // The file's text, and what it says; none where it is not whole.
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
