#include "data/parquet/parquet_records.h"

#include <algorithm>
#include <deque>

#include "base/error.h"
#include "base/file.h"
#include "base/json_check.h"
#include "data/parquet/column_reader.h"
#include "data/parquet/parquet_schema.h"
#include "data/preprocess/json_record.h"

namespace bev {

namespace {

struct TooLongRow {};

// The columns of a node that are leaves, in file order.
void add_leaves(const ParquetNode& node, std::vector<const ParquetNode*>& out) {
  if (!node.group) out.push_back(&node);
  for (const ParquetNode& child : node.children) add_leaves(child, out);
}

// A list is written as group (list) { repeated group { element } }, by old writers without the
// inner group. True if the repeated node is only a wrapper.
bool wraps_element(const ParquetNode& list, const ParquetNode& repeated) {
  return list.list && repeated.group && repeated.children.size() == 1 && repeated.name != "array" &&
         repeated.name != list.name + "_tuple";
}

// Puts rows together from their columns: the inverse of Dremel's record shredding.
class RowAssembler {
 public:
  RowAssembler(std::string_view file, const ParquetRowGroup& group,
               std::span<const ParquetNode* const> tops, std::size_t most_bytes)
      : tops_(tops), most_bytes_(most_bytes) {
    std::vector<const ParquetNode*> leaves;
    for (const ParquetNode* top : tops) add_leaves(*top, leaves);
    for (const ParquetNode* leaf : leaves) {
      index_.resize(std::max(index_.size(), leaf->column + 1));
      index_[leaf->column] = columns_.size();
      columns_.emplace_back(file, group.chunks[leaf->column], *leaf);
    }
  }

  // Appends the object of the next row. Throws TooLongRow if it has too many bytes.
  void append_row(std::string& json) {
    for (const ParquetNode* top : tops_) check_row_begins(*top);
    json.push_back('{');
    for (const ParquetNode* top : tops_) {
      if (top != tops_.front()) json.push_back(',');
      append_name(json, top->name);
      append_node(json, *top);
    }
    json.push_back('}');
    check_length(json);
    ++rows_;
  }

  // Goes on to the next row after a TooLongRow.
  void finish_row() {
    ++rows_;
    for (ColumnReader& column : columns_) {
      while (const ColumnReader::Levels* levels = column.peek()) {
        if (column.rows() == rows_ && levels->rep == 0) break;
        column.skip();
      }
    }
  }

  bool at_end() {
    return std::ranges::all_of(columns_, [](ColumnReader& c) { return c.peek() == nullptr; });
  }
  std::int64_t position() const {
    std::int64_t most = 0;
    for (const ColumnReader& column : columns_) most = std::max(most, column.position());
    return most;
  }
  // Column that was read last, for messages; nullptr before the first.
  const ParquetNode* current() const { return current_; }

 private:
  ColumnReader& column(const ParquetNode& leaf) { return columns_[index_[leaf.column]]; }
  static const ParquetNode& first_leaf(const ParquetNode& node) {
    return node.group ? first_leaf(node.children.front()) : node;
  }

  const ColumnReader::Levels& peek(const ParquetNode& node) {
    current_ = &first_leaf(node);
    const ColumnReader::Levels* levels = column(*current_).peek();
    BEV_CHECK(levels != nullptr, ErrorKind::kInput, "the column has fewer rows than its row group");
    return *levels;
  }

  void check_row_begins(const ParquetNode& node) {
    for (const ParquetNode& child : node.children) check_row_begins(child);
    if (node.group) return;
    BEV_CHECK(peek(node).rep == 0, ErrorKind::kInput,
              "a row begins inside of a list; the file is damaged");
  }

  void check_length(const std::string& json) const {
    if (json.size() > most_bytes_) throw TooLongRow();
  }

  static void append_name(std::string& json, const std::string& name) {
    json.push_back('"');
    for (char c : name) {
      // Names are identifiers; what JSON would escape is replaced.
      json.push_back(c == '"' || c == '\\' || static_cast<unsigned char>(c) < 0x20 ? '_' : c);
    }
    json += "\":";
  }

  // Goes on in all columns below the node, which has no value here.
  void skip_node(const ParquetNode& node) {
    for (const ParquetNode& child : node.children) skip_node(child);
    if (node.group) return;
    peek(node);
    column(node).skip();
  }

  void append_node(std::string& json, const ParquetNode& node) {
    check_length(json);
    if (node.repetition == ParquetRepetition::kRepeated) return append_list(json, node, false);
    if (node.repetition == ParquetRepetition::kOptional && peek(node).def < node.max_def) {
      skip_node(node);
      json += "null";
      return;
    }
    append_content(json, node);
  }

  void append_content(std::string& json, const ParquetNode& node) {
    if (!node.group) {
      peek(node);
      return column(node).take(json);
    }
    const ParquetNode& first = node.children.front();
    if (node.list && node.children.size() == 1 &&
        first.repetition == ParquetRepetition::kRepeated) {
      return append_list(json, first, wraps_element(node, first));
    }
    append_object(json, node);
  }

  void append_object(std::string& json, const ParquetNode& node) {
    json.push_back('{');
    for (const ParquetNode& child : node.children) {
      std::size_t before = json.size();
      if (json.back() != '{') json.push_back(',');
      append_name(json, child.name);
      std::size_t value = json.size();
      append_node(json, child);
      if (std::string_view(json).substr(value) == "null") json.resize(before);
    }
    json.push_back('}');
  }

  void append_list(std::string& json, const ParquetNode& repeated, bool wraps) {
    if (peek(repeated).def < repeated.max_def) {
      skip_node(repeated);
      json += "[]";
      return;
    }
    json.push_back('[');
    const ParquetNode& leaf = first_leaf(repeated);
    for (bool more = true; more;) {
      if (wraps) {
        append_node(json, repeated.children.front());
      } else {
        append_content(json, repeated);
      }
      check_length(json);
      const ColumnReader::Levels* next = column(leaf).peek();
      more = next != nullptr && next->rep >= repeated.max_rep;
      BEV_CHECK(!more || next->rep == repeated.max_rep, ErrorKind::kInput,
                "the columns of a list disagree; the file is damaged");
      if (more) json.push_back(',');
    }
    json.push_back(']');
  }

  std::span<const ParquetNode* const> tops_;
  std::size_t most_bytes_;
  std::vector<std::size_t> index_;  // of a column of the file in columns_
  std::deque<ColumnReader> columns_;
  std::int64_t rows_ = 0;
  const ParquetNode* current_ = nullptr;
};

class ParquetRecords : public RecordReader {
 public:
  ParquetRecords(const InputFile& input, std::size_t file, const TextOptions& options)
      : path_(input.path), file_(file), options_(options), mapped_(input.path) {
    try {
      schema_ = read_parquet_schema(bytes());
    } catch (const Error& error) {
      throw Error(concat(path_, ": "), error);
    }
    for (const std::string& name : options.json_keys) {
      auto found = std::ranges::find(schema_.root.children, name, &ParquetNode::name);
      if (found != schema_.root.children.end()) tops_.push_back(&*found);
    }
    if (tops_.empty()) fail_columns();
  }

  bool next(Record& record) override {
    record.file = file_;
    record.from_byte = 0;
    record.line = row_ + 1;
    record.ends_document = true;
    record.text.clear();
    record.problem.clear();
    try {
      if (!find_row()) return false;
      ++row_;
      --group_left_;
      rows_->append_row(record.text);
    } catch (const TooLongRow&) {
      record.text = std::string();
      record.problem =
          concat("the row is longer than --max-document-bytes ", options_.max_document_bytes,
                 "; cut the document, or raise that flag of preprocess");
      if (options_.on_error == BadRecords::kSkip) finish_row();
    } catch (const Error& error) {
      throw located(error);
    }
    return true;
  }

  std::int64_t position() const override { return position_; }

 private:
  std::string_view bytes() const {
    return {reinterpret_cast<const char*>(mapped_.bytes().data()), mapped_.bytes().size()};
  }

  [[noreturn]] void fail_columns() const {
    constexpr std::size_t kShown = 10;
    std::vector<std::string> all, names;
    for (const ParquetNode& node : schema_.root.children) {
      all.push_back(node.name);
      if (names.size() < kShown) names.push_back(quote(node.name, 40));
    }
    BEV_FAIL(ErrorKind::kInput, path_, ": there is no column ", join(options_.json_keys, ", "),
             "; the file has ", names.empty() ? "none" : join(names, ", "),
             schema_.root.children.size() > kShown ? ", ..." : "",
             options_.only_records ? "" : concat("; ", advice_without_key(all)));
  }

  Error located(const Error& error) const {
    std::string where = concat(path_, ": row group ", next_group_);
    const ParquetNode* column = rows_ ? rows_->current() : nullptr;
    if (column != nullptr) where += concat(", column ", quote(column->name, 40));
    return Error(concat(where, ": "), error);
  }

  // Opens the row group of the next row; false behind the last.
  bool find_row() {
    while (group_left_ == 0) {
      if (rows_) {
        BEV_CHECK(rows_->at_end(), ErrorKind::kInput,
                  "the columns have more rows than their row group");
        position_ = std::max(position_, rows_->position());
        forget_pages(mapped_.bytes().first(static_cast<std::size_t>(position_)));
        rows_.reset();
      }
      if (next_group_ == schema_.row_groups.size()) return false;
      const ParquetRowGroup& group = schema_.row_groups[next_group_++];
      rows_ = std::make_unique<RowAssembler>(bytes(), group, tops_,
                                             static_cast<std::size_t>(options_.max_document_bytes));
      group_left_ = group.num_rows;
    }
    position_ = std::max(position_, rows_->position());
    return true;
  }

  void finish_row() {
    try {
      rows_->finish_row();
    } catch (const Error& error) {
      throw located(error);
    }
  }

  std::string path_;
  std::size_t file_;
  const TextOptions& options_;
  MappedFile mapped_;
  ParquetSchema schema_;
  std::vector<const ParquetNode*> tops_;  // wanted columns
  std::unique_ptr<RowAssembler> rows_;    // of the current row group
  std::size_t next_group_ = 0;
  std::int64_t group_left_ = 0, row_ = 0, position_ = 0;
};

}  // namespace

std::unique_ptr<RecordReader> open_parquet_records(const InputFile& input, std::size_t file,
                                                   const TextOptions& options) {
  return std::make_unique<ParquetRecords>(input, file, options);
}

}  // namespace bev
