#include "data/labelled/table_file.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/json_check.h"

namespace bev {

namespace {

using Cells = std::vector<std::string>;

bool ends_line(char c) { return c == '\n' || c == '\r'; }

// Cuts the text of a file into rows of cells; counts lines for messages.
class CellReader {
 public:
  CellReader(std::string_view text, std::string path, bool quotes)
      : text_(text), path_(std::move(path)), separator_(quotes ? ',' : '\t'), quotes_(quotes) {
    if (text_.starts_with("\xef\xbb\xbf")) text_.remove_prefix(3);  // byte order mark
  }

  std::string where() const { return concat(path_, ":", line_); }
  // False at the end. Blank lines are skipped.
  bool next(Cells& cells) {
    while (!text_.empty() && ends_line(text_.front())) end_line();
    if (text_.empty()) return false;
    line_ = next_line_;
    cells.clear();
    do cells.push_back(cell());
    while (take(separator_));
    BEV_CHECK(text_.empty() || ends_line(text_.front()), ErrorKind::kInput, where(),
              ": text behind the closing quote of a cell");
    end_line();
    return true;
  }

 private:
  bool take(char wanted) {
    if (text_.empty() || text_.front() != wanted) return false;
    text_.remove_prefix(1);
    return true;
  }
  void end_line() {
    const bool both = text_.starts_with("\r\n");
    if (!text_.empty()) text_.remove_prefix(both ? 2 : 1);
    ++next_line_;
  }
  std::string cell() {
    if (quotes_ && take('"')) return quoted();
    std::size_t end = 0;
    while (end < text_.size() && text_[end] != separator_ && !ends_line(text_[end])) ++end;
    std::string value(text_.substr(0, end));
    text_.remove_prefix(end);
    return value;
  }
  // Up to the closing quote; two quotes are one.
  std::string quoted() {
    std::string value;
    while (true) {
      BEV_CHECK(!text_.empty(), ErrorKind::kInput, where(), ": a quoted cell does not end");
      const char c = text_.front();
      text_.remove_prefix(1);
      if (c == '"' && !take('"')) return value;
      if (c == '\n') ++next_line_;
      value.push_back(c);
    }
  }

  std::string_view text_;
  std::string path_;
  char separator_;
  bool quotes_;
  std::int64_t line_ = 1, next_line_ = 1;
};

std::vector<JsonPlace> read_cells(const std::string& path, bool quotes) {
  const std::string text = read_file(path);
  CellReader reader(text, path, quotes);
  Cells header, cells;
  BEV_CHECK(reader.next(header), ErrorKind::kInput, path, ": is empty; its first line must name ",
            "the columns");
  for (auto name = header.begin(); name != header.end(); ++name) {
    BEV_CHECK(std::find(header.begin(), name, *name) == name, ErrorKind::kInput, reader.where(),
              ": the column '", *name, "' is there twice");
  }
  std::vector<JsonPlace> rows;
  while (reader.next(cells)) {
    BEV_CHECK(cells.size() == header.size(), ErrorKind::kInput, reader.where(), ": ", cells.size(),
              " cells for ", header.size(), " columns");
    auto object = nlohmann::json::object();
    for (std::size_t i = 0; i < cells.size(); ++i) object[header[i]] = cells[i];
    using Handler = nlohmann::json::error_handler_t;
    rows.push_back(JsonPlace::parse(object.dump(-1, ' ', false, Handler::replace), reader.where()));
  }
  return rows;
}

std::vector<JsonPlace> read_lines(const std::string& path) {
  const std::string text = read_file(path);
  std::vector<JsonPlace> rows;
  std::int64_t number = 0;
  for (std::string_view rest = text; !rest.empty();) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view line = trim(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
    ++number;
    if (line.empty()) continue;
    rows.push_back(JsonPlace::parse(line, concat(path, ":", number)));
    BEV_CHECK(rows.back().is_object(), ErrorKind::kInput, rows.back().where(),
              ": expected an object with named columns, got ", rows.back().type_name());
  }
  return rows;
}

}  // namespace

std::vector<JsonPlace> read_table(const std::string& path) {
  const bool csv = path.ends_with(".csv"), tsv = path.ends_with(".tsv");
  const bool lines = path.ends_with(".jsonl") || path.ends_with(".json");
  BEV_CHECK(csv || tsv || lines, ErrorKind::kInput, path,
            ": tables are JSON lines (.jsonl), .csv or .tsv, by the end of the name");
  std::vector<JsonPlace> rows = lines ? read_lines(path) : read_cells(path, csv);
  BEV_CHECK(!rows.empty(), ErrorKind::kInput, path, ": has no row");
  return rows;
}

}  // namespace bev
