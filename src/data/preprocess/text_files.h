// The one rule for which files are text, for every command that reads text. A file is taken
//   - as JSON, Parquet or text by a known ending (.jsonl, .parquet, .txt, .py, ..., with .gz,
//   .zst),
//   - otherwise as text if its first 64 KiB are UTF-8 without control characters.
// In folders, hidden entries and binary files are left out and counted; a binary file that is given
// by its name is an error. Zero bytes and UTF-16 are binary whatever the ending.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/preprocess/left_out.h"
#include "data/preprocess/text_source.h"

namespace bev {

// Regular files below a folder, sorted by path. Links to folders are not followed.
std::vector<std::string> files_under(const std::string& folder, LeftOut& left_out);

// Beginning of a file's content.
struct ContentStart {
  std::string bytes;  // decompressed
  bool whole = true;  // nothing follows
};
ContentStart read_content_start(const std::string& path);

// Format of a file, or why it is not read.
struct FileVerdict {
  std::optional<TextFormat> format;
  bool foreign_json = false;  // JSON that is taken as text, since it has none of the keys
  LeftOutReason reason = LeftOutReason::kBinary;
  std::string problem = {};  // for a file given by its name, with the cure
};
// Verdict on a regular file. One that is given by its name (`named`) is taken where it can be read
// at all; others must look like the text or records that the options want.
FileVerdict judge_file(const std::string& path, const ContentStart& start,
                       const TextOptions& options, bool named);

// Format that a file's ending stands for.
std::optional<TextFormat> format_of_name(std::string_view path);

}  // namespace bev
