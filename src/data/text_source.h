// Documents in files: JSON lines or plain text, compressed or not, one after the other in the order
// of the files. Memory is bounded by the longest document that is allowed.
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
// What a document of a plain text file is.
enum class TextUnit : std::uint8_t { kFile, kLine, kParagraph };
// What readers do at a record that holds no text.
enum class BadRecords : std::uint8_t { kStop, kSkip };

// What the sizes below may be at most.
inline constexpr double kMostTextBytes = 1 << 30;

struct TextOptions {
  TextFormat format = TextFormat::kByName;
  // Files whose name tells nothing are text; otherwise they are an error.
  bool other_names_are_text = false;
  TextUnit unit = TextUnit::kFile;
  // Documents that are whole files are cut at line ends into records of about so many bytes; 0:
  // they are not.
  std::int64_t piece_bytes = 0;
  std::int64_t max_document_bytes = std::int64_t{64} << 20;
  BadRecords on_error = BadRecords::kStop;

  // The flags of all commands that read text.
  void fields(FieldList& list);
};

struct InputFile {
  std::string path;
  TextFormat format = TextFormat::kText;  // not kByName
  bool regular = true;                    // its bytes are there to be read again
  bool cuttable = false;                  // records can be found from any byte on
  std::int64_t bytes = 0;                 // 0 where it is not regular
  std::int64_t modified_ns = 0;
};

// Files as given, patterns (* ? []) and folders sorted by path; links to folders are not followed.
// Error(kInput) when a name leads to nothing, or nobody says what is in a file.
std::vector<InputFile> list_inputs(std::span<const std::string> names, const TextOptions& options);

// The records that begin in bytes [begin, end) of a file.
struct FileRange {
  std::size_t file = 0;
  std::int64_t begin = 0, end = 0;
};
// Cuts the files into consecutive parts of about equal size; a file that cannot be cut belongs to
// the part where it begins. A part may be empty.
std::vector<std::vector<FileRange>> cut_inputs(std::span<const InputFile> files,
                                               std::int64_t parts);

// A line of JSON, or text.
struct Record {
  std::size_t file = 0;
  // The line where it begins, counted from 1 and from the first that begins at `from_byte` or
  // later.
  std::int64_t line = 0, from_byte = 0;
  std::string text;
  bool ends_document = true;
  std::string problem;  // not empty: why there is no text
};

// All records of a part. Blank lines are none.
class TextSource {
 public:
  TextSource(std::span<const InputFile> files, std::span<const FileRange> ranges,
             const TextOptions& options);
  ~TextSource();

  // False at the end. Error(kInput) when a file cannot be read.
  bool next(Record& record);
  // Bytes of the part's files that were read so far.
  std::int64_t position() const;

 private:
  class FileReader;

  std::span<const InputFile> files_;
  std::span<const FileRange> ranges_;
  TextOptions options_;
  std::size_t next_range_ = 0;
  std::int64_t bytes_before_ = 0;  // of the ranges that are done
  std::unique_ptr<FileReader> reader_;
};

// Lines of a file that begin before a byte of it: what is missing in Record::line. Reads all of
// them.
std::int64_t count_lines_before(const std::string& path, std::int64_t from_byte);

}  // namespace bev
