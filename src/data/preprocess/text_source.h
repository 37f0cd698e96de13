// Documents from JSON lines or plain text files, optionally compressed, in file order. Memory is
// bounded by the longest allowed document.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace bev {

class FieldList;

enum class TextFormat : std::uint8_t { kByName, kJsonLines, kText };
// Unit of a document in a plain text file.
enum class TextUnit : std::uint8_t { kFile, kLine, kParagraph };
// What to do with a record that has no valid text.
enum class BadRecords : std::uint8_t { kStop, kSkip };

// Upper limit of the sizes below.
inline constexpr double kMostTextBytes = 1 << 30;

struct TextOptions {
  TextFormat format = TextFormat::kByName;
  // Files with an unknown extension are text; otherwise they are an error.
  bool other_names_are_text = false;
  TextUnit unit = TextUnit::kFile;
  // Documents that are whole files are cut at line ends into records of about this size; 0: not
  // cut.
  std::int64_t piece_bytes = 0;
  std::int64_t max_document_bytes = std::int64_t{64} << 20;
  BadRecords on_error = BadRecords::kStop;

  // Flags of all commands that read text.
  void fields(FieldList& list);
};

struct InputFile {
  std::string path;
  TextFormat format = TextFormat::kText;  // never kByName
  bool regular = true;                    // can be read again (not a pipe)
  bool cuttable = false;                  // records can be found from any byte on
  std::int64_t bytes = 0;                 // 0 if not regular
  std::int64_t modified_ns = 0;
};

// Files as given; patterns (* ? []) and folders are expanded and sorted by path; links to folders
// are not followed. Throws Error(kInput) if a name matches nothing or a file's format is unknown.
std::vector<InputFile> list_inputs(std::span<const std::string> names, const TextOptions& options);

// The records that begin in bytes [begin, end) of a file.
struct FileRange {
  std::size_t file = 0;
  std::int64_t begin = 0, end = 0;
};
// Divides the files into consecutive parts of about equal size; a file that is not cuttable belongs
// to the part where it begins. A part may be empty.
std::vector<std::vector<FileRange>> cut_inputs(std::span<const InputFile> files,
                                               std::int64_t parts);

// A line of JSON, or text.
struct Record {
  std::size_t file = 0;
  // Line where it begins, counted from 1 starting at the first line that begins at or after
  // `from_byte`.
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
  class FileReader;

  std::span<const InputFile> files_;
  std::span<const FileRange> ranges_;
  TextOptions options_;
  std::size_t next_range_ = 0;
  std::int64_t bytes_before_ = 0;  // bytes of the finished ranges
  std::unique_ptr<FileReader> reader_;
};

// Number of lines that begin before a byte of a file, to be added to Record::line. Reads all of
// them.
std::int64_t count_lines_before(const std::string& path, std::int64_t from_byte);

}  // namespace bev
