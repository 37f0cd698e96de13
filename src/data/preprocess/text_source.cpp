#include "data/preprocess/text_source.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "base/error.h"
#include "data/parquet/parquet_records.h"
#include "data/preprocess/chunked_bytes.h"
#include "data/preprocess/record_reader.h"
#include "tokenizer/text/utf8.h"

namespace bev {

namespace {

constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r") == line.npos; }

// Length of `text` up to its last line end, or up to its last complete character if it has only one
// line.
std::size_t cut_at_line(std::string_view text) {
  std::size_t newline = text.rfind('\n');
  if (newline != text.npos) return newline + 1;
  constexpr std::size_t kLongestTail = 3;  // UTF-8 continuation bytes
  std::size_t last = text.size() - 1, least = last - std::min(last, kLongestTail);
  while (last > least && (static_cast<unsigned char>(text[last]) & 0xc0) == 0x80) --last;
  bool whole = last + point_bytes(text[last]) <= text.size();
  return whole || last == 0 ? text.size() : last;
}

// Lines, or text in the units of the options.
class TextReader : public RecordReader {
 public:
  // `bytes` begins one byte before the range, unless that begins at 0: the preceding byte tells
  // whether a line begins there.
  TextReader(ChunkedBytes bytes, const InputFile& file, const FileRange& range,
             const TextOptions& options)
      : bytes_(std::move(bytes)), file_(file), range_(range), options_(options) {
    if (range.begin > 0) skip_line();
  }

  bool next(Record& record) override {
    record.file = range_.file;
    record.from_byte = range_.begin;
    record.text.clear();
    record.problem.clear();
    record.ends_document = true;
    if (file_.format == TextFormat::kJsonLines || options_.unit == TextUnit::kLine) {
      return next_line(record);
    }
    return options_.unit == TextUnit::kParagraph ? next_paragraph(record) : next_piece(record);
  }

  std::int64_t position() const override { return bytes_.position(); }

 private:
  std::string_view rest() { return bytes_.rest(); }
  void take(std::size_t count) { bytes_.take(count); }

  static void refuse(Record& record, const char* what, std::int64_t limit) {
    record.text = std::string();  // frees its memory
    record.problem = concat(what, " is longer than --max-document-bytes ", limit,
                            "; cut the document, or raise that flag of preprocess");
  }

  void skip_line() {
    for (std::string_view bytes = rest(); !bytes.empty(); bytes = rest()) {
      std::size_t newline = bytes.find('\n');
      take(newline == bytes.npos ? bytes.size() : newline + 1);
      if (newline != bytes.npos) return;
    }
  }

  // With kStop no record is read after one that is too long, so its (possibly distant) end is not
  // searched.
  bool is_last(bool too_long) const { return too_long && options_.on_error == BadRecords::kStop; }

  // Appends the current line, without its line end, to `text`; the excess of an over-long line is
  // dropped.
  struct Line {
    bool blank = true, too_long = false;
  };
  Line append_line(std::string& text) {
    Line line;
    ++line_;
    for (std::string_view bytes = rest(); !bytes.empty(); bytes = rest()) {
      std::size_t newline = bytes.find('\n');
      std::string_view part = bytes.substr(0, newline);
      line.blank = line.blank && is_blank(part);
      line.too_long = line.too_long || text.size() + part.size() > limit();
      if (!line.too_long) text.append(part);
      take(newline == bytes.npos ? part.size() : newline + 1);
      if (newline != bytes.npos || (!line.blank && is_last(line.too_long))) break;
    }
    return line;
  }

  bool next_line(Record& record) {
    while (bytes_.offset() < range_.end && !rest().empty()) {
      record.line = line_;
      Line line = append_line(record.text);
      if (line.too_long) refuse(record, "the line", options_.max_document_bytes);
      if (!line.blank) {
        if (record.text.ends_with('\r')) record.text.pop_back();
        return true;
      }
      record.text.clear();
      record.problem.clear();
    }
    return false;
  }

  bool next_paragraph(Record& record) {
    bool found = false, too_long = false;
    while (!is_last(too_long) && !rest().empty()) {
      std::int64_t at = line_;
      std::size_t before = record.text.size();
      if (found) record.text.push_back('\n');
      Line line = append_line(record.text);
      if (line.blank) {
        record.text.resize(before);
        if (found) break;
        continue;
      }
      if (!found) record.line = at;
      found = true;
      too_long = too_long || line.too_long;
      if (record.text.ends_with('\r')) record.text.pop_back();
    }
    if (too_long) refuse(record, "the paragraph", options_.max_document_bytes);
    return found;
  }

  // The whole file, or its next piece.
  bool next_piece(Record& record) {
    bool whole = options_.piece_bytes == 0;
    std::size_t wanted = whole ? limit() + 1 : static_cast<std::size_t>(options_.piece_bytes);
    record.text.swap(carried_);
    record.line = line_;
    while (record.text.size() < wanted && !rest().empty()) {
      std::string_view part = rest().substr(0, wanted - record.text.size());
      record.text.append(part);
      take(part.size());
    }
    if (record.text.empty()) return false;
    if (!rest().empty() && whole) {
      while (!is_last(true) && !rest().empty()) take(rest().size());
    } else if (!rest().empty()) {
      std::size_t cut = cut_at_line(record.text);
      carried_.assign(record.text, cut);
      record.text.resize(cut);
      record.ends_document = false;
    }
    line_ += std::ranges::count(record.text, '\n');
    if (whole && record.text.size() > limit()) {
      refuse(record, "the file", options_.max_document_bytes);
      record.problem += "; --txt-documents and --txt-piece-bytes do";
    }
    return true;
  }

  std::size_t limit() const { return static_cast<std::size_t>(options_.max_document_bytes); }

  ChunkedBytes bytes_;
  const InputFile& file_;
  FileRange range_;
  const TextOptions& options_;
  std::int64_t line_ = 1;
  std::string carried_;  // start of the next piece
};

std::unique_ptr<RecordReader> open_records(const InputFile& file, const FileRange& range,
                                           const TextOptions& options) {
  if (file.format == TextFormat::kParquet) return open_parquet_records(file, range.file, options);
  ChunkedBytes bytes(file.path, std::max<std::int64_t>(range.begin - 1, 0));
  if (range.begin == 0 && bytes.rest().starts_with(kByteOrderMark)) {
    bytes.take(kByteOrderMark.size());
  }
  bool array =
      file.format == TextFormat::kJsonLines && range.begin == 0 && begins_json_array(bytes.rest());
  if (array) return open_json_array(std::move(bytes), range.file, options);
  return std::make_unique<TextReader>(std::move(bytes), file, range, options);
}

}  // namespace

bool begins_json_array(std::string_view text) {
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  std::size_t first = text.find_first_not_of(" \t\r\n");
  return first != text.npos && text[first] == '[';
}

TextSource::TextSource(std::span<const InputFile> files, std::span<const FileRange> ranges,
                       const TextOptions& options)
    : files_(files), ranges_(ranges), options_(options) {}

TextSource::~TextSource() = default;

bool TextSource::next(Record& record) {
  while (true) {
    if (!reader_) {
      if (next_range_ == ranges_.size()) return false;
      const FileRange& range = ranges_[next_range_++];
      reader_ = open_records(files_[range.file], range, options_);
    }
    if (reader_->next(record)) return true;
    bytes_before_ = position();
    reader_.reset();
  }
}

std::int64_t TextSource::position() const {
  if (!reader_) return bytes_before_;
  // The reader is ahead of the records, possibly beyond the range.
  const FileRange& range = ranges_[next_range_ - 1];
  const InputFile& file = files_[range.file];
  std::int64_t end = file.regular ? std::min(range.end, file.bytes) : range.end;
  return bytes_before_ + std::clamp(reader_->position(), range.begin, end) - range.begin;
}

std::int64_t count_lines_before(const std::string& path, std::int64_t from_byte) {
  if (from_byte == 0) return 0;
  constexpr std::size_t kChunkBytes = 1 << 18;
  std::unique_ptr<ByteStream> stream = open_byte_stream(path);
  std::vector<char> chunk(kChunkBytes);
  std::int64_t lines = 0;
  char last = '\n';
  for (auto left = static_cast<std::size_t>(from_byte); left > 0;) {
    std::size_t count = stream->read(std::span(chunk).first(std::min(left, chunk.size())));
    if (count == 0) break;
    lines += std::count(chunk.begin(), chunk.begin() + static_cast<std::ptrdiff_t>(count), '\n');
    last = chunk[count - 1];
    left -= count;
  }
  return last == '\n' ? lines : lines + 1;
}

}  // namespace bev
