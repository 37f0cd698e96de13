// Texts of a file with one JSON value on each line, for commands that compute something for each:
// a string, or an object with "text" or "input". The file may be longer than memory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace bev {

struct TextRow {
  std::string where;  // "F.jsonl:12", for messages
  std::string text;
};

class TextRows {
 public:
  // Reads all lines once. Error(kInput) naming the first line that has no text, or if there is
  // none; blank lines are skipped.
  explicit TextRows(std::string path);
  ~TextRows();

  std::int64_t count() const { return count_; }
  // The next rows: until they have `bytes` of text or are `most`. Empty at the end.
  std::vector<TextRow> next(std::int64_t bytes, std::int64_t most);

 private:
  struct Lines;

  std::string path_;
  std::unique_ptr<Lines> lines_;
  std::int64_t count_ = 0;
};

}  // namespace bev
