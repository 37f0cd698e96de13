// Documents from JSON (lines or an array), Parquet or plain text files, optionally compressed, in
// file order. Memory is bounded by the longest allowed document.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/preprocess/left_out.h"

namespace bev {

class FieldList;
class RecordReader;

// kJsonLines: JSON objects, one on each line or all in an array.
enum class TextFormat : std::uint8_t { kByName, kJsonLines, kText, kParquet };
// Unit of a document in a plain text file.
enum class TextUnit : std::uint8_t { kFile, kLine, kParagraph };
// What to do with a record that has no valid text.
enum class BadRecords : std::uint8_t { kStop, kSkip };

// Upper limit of the sizes below.
inline constexpr double kMostTextBytes = 1 << 30;

struct TextOptions {
  TextFormat format = TextFormat::kByName;
  // Plain text is left out of folders: the files hold records (of JSON or Parquet).
  bool only_records = false;
  TextUnit unit = TextUnit::kFile;
  // Documents that are whole files are cut at line ends into records of about this size; 0: not
  // cut.
  std::int64_t piece_bytes = 0;
  std::int64_t max_document_bytes = std::int64_t{64} << 20;
  BadRecords on_error = BadRecords::kStop;
  // Keys of the objects of JSON, and columns of Parquet, that hold texts or conversations.
  std::vector<std::string> json_keys = {"text"};

  // Flags of all commands that read text.
  void fields(FieldList& list);
};

struct InputFile {
  std::string path;
  TextFormat format = TextFormat::kText;  // never kByName
  bool regular = true;                    // can be read again (not a pipe)
  bool cuttable = false;                  // records can be found from any byte on
  bool foreign_json = false;              // read as text: JSON without any of the keys
  std::int64_t bytes = 0;                 // 0 if not regular
  std::int64_t modified_ns = 0;
};

// The files to read, and what was left out of folders and patterns.
struct TextInputs {
  std::vector<InputFile> files;
  LeftOut left_out;
};
// "read 12 files, 3.40 MiB; left out 2 hidden (.env, .git), 1 binary (logo.png)".
std::string to_text(const TextInputs& inputs);

// Files as given; patterns (* ? []) and folders are expanded and sorted by path, and what is not
// text is left out (text_files.h has the rule). Throws Error(kInput) if a name matches nothing, a
// file given by its name is binary, or no file is left.
TextInputs list_inputs(std::span<const std::string> names, const TextOptions& options);

// The records that begin in bytes [begin, end) of a file.
struct FileRange {
  std::size_t file = 0;
  std::int64_t begin = 0, end = 0;
};
// Divides the files into consecutive parts of about equal size; a file that is not cuttable belongs
// to the part where it begins. A part may be empty.
std::vector<std::vector<FileRange>> cut_inputs(std::span<const InputFile> files,
                                               std::int64_t parts);

// An object of JSON, or text.
struct Record {
  std::size_t file = 0;
  // Line where it begins, counted from 1 starting at the first line that begins at or after
  // `from_byte`; the row of a Parquet file.
  std::int64_t line = 0, from_byte = 0;
  std::string text;
  bool ends_document = true;
  std::string problem;  // non-empty: why there is no text
};

// Reader of all records of a part. Blank lines are skipped.
class TextSource {
 public:
  TextSource(std::span<const InputFile> files, std::span<const FileRange> ranges,
             const TextOptions& options);
  ~TextSource();

  // Returns false at the end. Throws Error(kInput) if a file cannot be read.
  bool next(Record& record);
  // Bytes of the part's files read so far.
  std::int64_t position() const;

 private:
  std::span<const InputFile> files_;
  std::span<const FileRange> ranges_;
  TextOptions options_;
  std::size_t next_range_ = 0;
  std::int64_t bytes_before_ = 0;  // bytes of the finished ranges
  std::unique_ptr<RecordReader> reader_;
};

// True if the first character that is not white space is [.
bool begins_json_array(std::string_view text);

// Number of lines that begin before a byte of a file, to be added to Record::line. Reads all of
// them.
std::int64_t count_lines_before(const std::string& path, std::int64_t from_byte);

}  // namespace bev
