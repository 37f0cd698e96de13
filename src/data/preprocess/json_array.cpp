// Elements of a JSON array in a file of any length, found without parsing them.
#include <algorithm>
#include <string_view>
#include <utility>

#include "base/text.h"
#include "data/preprocess/chunked_bytes.h"
#include "data/preprocess/record_reader.h"

namespace bev {

namespace {

constexpr bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

// Follows one JSON value byte by byte, as far as its end is concerned.
class ValueEnd {
 public:
  enum class Verdict : std::uint8_t { kInside, kLast, kBehind };

  Verdict step(char c) {
    if (in_text_) {
      if (escaped_) {
        escaped_ = false;
      } else if (c == '\\') {
        escaped_ = true;
      } else if (c == '"') {
        in_text_ = false;
        if (depth_ == 0) return Verdict::kLast;
      }
      return Verdict::kInside;
    }
    if (depth_ == 0 && (c == ',' || c == ']' || is_space(c))) return Verdict::kBehind;
    if (c == '"') in_text_ = true;
    if (c == '{' || c == '[') ++depth_;
    if ((c == '}' || c == ']') && depth_ > 0 && --depth_ == 0) return Verdict::kLast;
    return Verdict::kInside;
  }

 private:
  std::int64_t depth_ = 0;
  bool in_text_ = false, escaped_ = false;
};

class JsonArrayReader : public RecordReader {
 public:
  JsonArrayReader(ChunkedBytes bytes, std::size_t file, const TextOptions& options)
      : bytes_(std::move(bytes)), file_(file), options_(options) {}

  bool next(Record& record) override {
    if (ended_) return false;
    record.file = file_;
    record.from_byte = 0;
    record.ends_document = true;
    record.text.clear();
    record.problem.clear();
    bool opening = !std::exchange(open_, true);
    if (opening) {
      skip_space();
      take();
    }
    skip_space();
    record.line = line_;
    if (bytes_.rest().empty()) return stop_at(record, kCut);
    if (peek() == ']') return ends_file(record);
    if (!opening) {
      if (peek() != ',')
        return stop_at(record, "',' or ']' is missing behind an entry of the array");
      take();
      skip_space();
    }
    record.line = line_;
    return read_value(record);
  }

  std::int64_t position() const override { return bytes_.position(); }

 private:
  static constexpr const char* kCut = "the file ends inside of the array; it was cut";

  char peek() { return bytes_.rest().front(); }
  void take() {
    line_ += peek() == '\n';
    bytes_.take(1);
  }
  void skip_space() {
    while (!bytes_.rest().empty() && is_space(peek())) take();
  }

  // The last record: what is wrong with the array itself.
  bool stop_at(Record& record, std::string problem) {
    ended_ = true;
    record.problem = std::move(problem);
    return true;
  }

  // Behind the last entry.
  bool ends_file(Record& record) {
    take();
    skip_space();
    ended_ = true;
    if (bytes_.rest().empty()) return false;
    record.line = line_;
    return stop_at(record, "there is something behind the end of the array");
  }

  bool read_value(Record& record) {
    ValueEnd end;
    const auto limit = static_cast<std::size_t>(options_.max_document_bytes);
    std::size_t size = 0;
    for (bool inside = true; inside;) {
      std::string_view part = bytes_.rest();
      if (part.empty()) return stop_at(record, kCut);
      std::size_t count = 0;
      while (inside && count < part.size()) {
        ValueEnd::Verdict verdict = end.step(part[count]);
        inside = verdict == ValueEnd::Verdict::kInside;
        if (verdict != ValueEnd::Verdict::kBehind) ++count;
      }
      size += count;
      if (size <= limit) record.text.append(part, 0, count);
      line_ += std::ranges::count(part.substr(0, count), '\n');
      bytes_.take(count);
      if (size > limit && options_.on_error == BadRecords::kStop) break;
    }
    if (size == 0) return stop_at(record, "an entry of the array is missing");
    if (size > limit) {
      record.text = std::string();
      record.problem = concat("the entry is longer than --max-document-bytes ", limit,
                              "; cut the document, or raise that flag of preprocess");
    }
    return true;
  }

  ChunkedBytes bytes_;
  std::size_t file_;
  const TextOptions& options_;
  std::int64_t line_ = 1;
  bool open_ = false, ended_ = false;
};

}  // namespace

std::unique_ptr<RecordReader> open_json_array(ChunkedBytes bytes, std::size_t file,
                                              const TextOptions& options) {
  return std::make_unique<JsonArrayReader>(std::move(bytes), file, options);
}

}  // namespace bev
