// Expansion of input names to files, and their division into parts.
#include <glob.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>
#include <string_view>

#include "base/error.h"
#include "base/fields.h"
#include "base/file.h"
#include "base/plural.h"
#include "data/preprocess/byte_stream.h"
#include "data/preprocess/text_files.h"
#include "data/preprocess/text_source.h"

namespace bev {

namespace {
namespace fs = std::filesystem;

// Sorted paths that match a pattern. An existing file is taken literally.
std::vector<std::string> expand(const std::string& name) {
  if (path_exists(name) || name.find_first_of("*?[") == name.npos) return {name};
  glob_t found{};
  int status = ::glob(name.c_str(), GLOB_ERR, nullptr, &found);
  std::vector<std::string> paths(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  BEV_CHECK(status == 0 && !paths.empty(), ErrorKind::kInput, name, ": no file has such a name");
  return paths;
}

// Format of a pipe, whose content cannot be looked at.
TextFormat format_of_pipe(const std::string& path, const TextOptions& options) {
  if (options.format != TextFormat::kByName) return options.format;
  std::optional<TextFormat> format = format_of_name(path);
  BEV_CHECK(format, ErrorKind::kInput, path,
            ": is a pipe, and its name does not say what is in it; give --input-format jsonl or "
            "text, or a file");
  BEV_CHECK(format != TextFormat::kParquet, ErrorKind::kInput, path,
            ": is a pipe, and Parquet is read from its end; give a file");
  return *format;
}

struct stat status_of(const std::string& path) {
  struct stat status {};
  BEV_CHECK(::stat(path.c_str(), &status) == 0, ErrorKind::kInput, path,
            ": cannot be read: ", std::strerror(errno));
  BEV_CHECK(!S_ISCHR(status.st_mode) && !S_ISBLK(status.st_mode), ErrorKind::kInput, path,
            ": is a device, which may have no end; give a file or a pipe");
  return status;
}

// Adds the file, or counts it as left out under its `name` if it was not `named` by the user.
void add_file(const std::string& path, const std::string& name, bool named,
              const TextOptions& options, TextInputs& inputs) {
  struct stat status = status_of(path);
  InputFile file;
  file.path = path;
  file.regular = S_ISREG(status.st_mode);
  if (!file.regular) {
    file.format = format_of_pipe(path, options);
    inputs.files.push_back(std::move(file));
    return;
  }
  ContentStart start = read_content_start(path);
  FileVerdict verdict = judge_file(path, start, options, named);
  if (!verdict.format) {
    BEV_CHECK(!named, ErrorKind::kInput, path, ": ", verdict.problem);
    inputs.left_out.add(verdict.reason, name);
    return;
  }
  file.format = *verdict.format;
  file.foreign_json = verdict.foreign_json;
  file.bytes = status.st_size;
  file.modified_ns = std::int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
  bool records = file.format == TextFormat::kJsonLines && !begins_json_array(start.bytes);
  bool lines = records || (file.format == TextFormat::kText && options.unit == TextUnit::kLine);
  file.cuttable = lines && !is_compressed(path);
  inputs.files.push_back(std::move(file));
}

}  // namespace

void TextOptions::fields(FieldList& list) {
  list.add("json-keys", json_keys, "keys of the texts in an object of JSON, or columns of Parquet");
  list.add("on-error", on_error, {{"stop", BadRecords::kStop}, {"skip", BadRecords::kSkip}},
           "at a record that is no JSON, has no such text or is too long: stop, or skip it");
  list.add("input-format", format,
           {{"auto", TextFormat::kByName},
            {"jsonl", TextFormat::kJsonLines},
            {"text", TextFormat::kText}},
           "what is in the files; auto: their names and first bytes tell");
  list.add(
      "txt-documents", unit,
      {{"file", TextUnit::kFile}, {"line", TextUnit::kLine}, {"blank-line", TextUnit::kParagraph}},
      "a document of a text file: all of it, a line, or what is between blank lines");
  list.add("max-document-bytes", max_document_bytes,
           "longest document; a worker needs some ten times as much memory")
      .min(1)
      .limit(kMostTextBytes);
}

TextInputs list_inputs(std::span<const std::string> names, const TextOptions& options) {
  TextInputs inputs;
  for (const std::string& name : names) {
    for (const std::string& path : expand(name)) {
      if (!is_directory(path)) {
        add_file(path, path, path == name, options, inputs);
        continue;
      }
      for (const std::string& file : files_under(path, inputs.left_out)) {
        add_file(file, fs::path(file).lexically_relative(path).string(), false, options, inputs);
      }
    }
  }
  BEV_CHECK(!inputs.files.empty(), ErrorKind::kInput, join(names, ", "), ": there is no ",
            options.only_records ? "file of JSON or Parquet" : "text", " in it",
            inputs.left_out.empty() ? "" : "; left out ", inputs.left_out.text());
  return inputs;
}

std::string to_text(const TextInputs& inputs) {
  std::int64_t bytes = 0;
  for (const InputFile& file : inputs.files) bytes += file.bytes;
  std::string out = concat("read ", count_of(std::ssize(inputs.files), "file"));
  if (bytes > 0) out += concat(", ", format_bytes(static_cast<double>(bytes)));
  std::vector<std::string> foreign;
  for (const InputFile& file : inputs.files) {
    if (file.foreign_json) foreign.push_back(fs::path(file.path).filename().string());
  }
  if (!foreign.empty()) {
    out += concat("; ", foreign.size(),
                  " of JSON as plain text, being no records with the wanted keys (", foreign[0],
                  foreign.size() > 1 ? ", ..." : "", ")");
  }
  if (!inputs.left_out.empty()) out += concat("; left out ", inputs.left_out.text());
  return out;
}

std::vector<std::vector<FileRange>> cut_inputs(std::span<const InputFile> files,
                                               std::int64_t parts) {
  std::int64_t total = 0;
  for (const InputFile& file : files) total += file.bytes;
  std::vector<std::vector<FileRange>> out(static_cast<std::size_t>(parts));
  auto bound = [&](std::size_t part) {
    return static_cast<std::int64_t>(static_cast<__int128>(total) * static_cast<__int128>(part) /
                                     parts);
  };
  std::int64_t start = 0;
  for (std::size_t i = 0; i < files.size(); ++i) {
    std::int64_t bytes = files[i].bytes;
    for (std::size_t part = 0; part < out.size(); ++part) {
      bool last = part + 1 == out.size();
      std::int64_t begin = std::max(bound(part) - start, std::int64_t{0});
      std::int64_t end = std::min(bound(part + 1) - start, bytes);
      if (files[i].cuttable) {
        if (begin < end) out[part].push_back({i, begin, end});
      } else if (bound(part) <= start && (start < bound(part + 1) || last)) {
        out[part].push_back({i, 0, std::numeric_limits<std::int64_t>::max()});
        break;
      }
    }
    start += bytes;
  }
  return out;
}

}  // namespace bev
