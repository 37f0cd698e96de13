#include "app/text_rows.h"

#include <fstream>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "chat/jinja/value_text.h"

namespace bev {

namespace {

std::string text_of(const std::string& line, const std::string& where) {
  jinja::Value row = jinja::parse_json(line, where);
  const jinja::Value* found = row.is_string() ? &row : nullptr;
  for (const char* key : {"text", "input"}) {
    if (found == nullptr && row.is_dict()) found = row.dict()->find_name(key);
  }
  BEV_CHECK(found != nullptr && found->is_string(), ErrorKind::kInput, where,
            ": has no text; give a string, or an object with a string \"text\" or \"input\"");
  return *found->string();
}

}  // namespace

struct TextRows::Lines {
  explicit Lines(const std::string& path) : path_(path), file_(path, std::ios::binary) {
    BEV_CHECK(file_.is_open() && !is_directory(path), ErrorKind::kInput, path,
              ": cannot be opened; give a file with one JSON value on each line");
  }
  std::optional<TextRow> next() {
    for (std::string line; std::getline(file_, line);) {
      ++number_;
      if (trim(line).empty()) continue;
      std::string where = concat(path_, ":", number_);
      std::string text = text_of(line, where);
      return TextRow{std::move(where), std::move(text)};
    }
    return std::nullopt;
  }

 private:
  std::string path_;
  std::ifstream file_;
  std::int64_t number_ = 0;
};

TextRows::TextRows(std::string path) : path_(std::move(path)) {
  Lines all(path_);
  while (all.next()) ++count_;
  BEV_CHECK(count_ > 0, ErrorKind::kInput, path_, ": has no text");
  lines_ = std::make_unique<Lines>(path_);
}

TextRows::~TextRows() = default;

std::vector<TextRow> TextRows::next(std::int64_t bytes, std::int64_t most) {
  std::vector<TextRow> rows;
  while (bytes > 0 && std::ssize(rows) < most) {
    std::optional<TextRow> row = lines_->next();
    if (!row) break;
    bytes -= std::ssize(row->text);
    rows.push_back(std::move(*row));
  }
  return rows;
}

}  // namespace bev
