// Expansion of input names to files, and their division into parts.
#include <glob.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>
#include <string_view>

#include "base/error.h"
#include "base/fields.h"
#include "base/file.h"
#include "data/preprocess/byte_stream.h"
#include "data/preprocess/text_source.h"

namespace bev {

namespace {
namespace fs = std::filesystem;

std::vector<std::string> files_under(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code error;
  fs::recursive_directory_iterator entry(folder, error), end;
  while (!error && entry != end) {
    std::error_code dangling;  // a dangling link is not a regular file
    if (entry->is_regular_file(dangling)) files.push_back(entry->path().string());
    entry.increment(error);
  }
  BEV_CHECK(!error, ErrorKind::kInput, "cannot list ", folder, ": ", error.message());
  std::ranges::sort(files);
  return files;
}

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

std::optional<TextFormat> format_of_name(std::string_view path) {
  for (std::string_view archive : {".gz", ".zst"}) {
    if (path.ends_with(archive)) path.remove_suffix(archive.size());
  }
  for (std::string_view ending : {".jsonl", ".json", ".ndjson"}) {
    if (path.ends_with(ending)) return TextFormat::kJsonLines;
  }
  for (std::string_view ending : {".txt", ".text", ".md"}) {
    if (path.ends_with(ending)) return TextFormat::kText;
  }
  return std::nullopt;
}

TextFormat format_of(const std::string& path, const TextOptions& options) {
  if (options.format != TextFormat::kByName) return options.format;
  std::optional<TextFormat> format = format_of_name(path);
  BEV_CHECK(format || options.other_names_are_text, ErrorKind::kInput, path,
            ": its name does not say what is in it (.jsonl, .json, .ndjson or .txt, perhaps with "
            ".gz or .zst); give --input-format jsonl or text");
  return format.value_or(TextFormat::kText);
}

InputFile describe(const std::string& path, const TextOptions& options) {
  struct stat status {};
  BEV_CHECK(::stat(path.c_str(), &status) == 0, ErrorKind::kInput, path,
            ": cannot be read: ", std::strerror(errno));
  BEV_CHECK(!S_ISCHR(status.st_mode) && !S_ISBLK(status.st_mode), ErrorKind::kInput, path,
            ": is a device, which may have no end; give a file or a pipe");
  InputFile file;
  file.path = path;
  file.format = format_of(path, options);
  file.regular = S_ISREG(status.st_mode);
  if (!file.regular) return file;
  file.bytes = status.st_size;
  file.modified_ns = std::int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
  bool lines = file.format == TextFormat::kJsonLines || options.unit == TextUnit::kLine;
  file.cuttable = lines && !is_compressed(path);
  return file;
}

}  // namespace

void TextOptions::fields(FieldList& list) {
  list.add("on-error", on_error, {{"stop", BadRecords::kStop}, {"skip", BadRecords::kSkip}},
           "at a line that is no JSON, has no such text or is too long: stop, or skip it");
  list.add("input-format", format,
           {{"auto", TextFormat::kByName},
            {"jsonl", TextFormat::kJsonLines},
            {"text", TextFormat::kText}},
           "what is in the files; auto: their names tell");
  list.add(
      "txt-documents", unit,
      {{"file", TextUnit::kFile}, {"line", TextUnit::kLine}, {"blank-line", TextUnit::kParagraph}},
      "a document of a text file: all of it, a line, or what is between blank lines");
  list.add("max-document-bytes", max_document_bytes,
           "longest document; a worker needs some ten times as much memory")
      .min(1)
      .limit(kMostTextBytes);
}

std::vector<InputFile> list_inputs(std::span<const std::string> names, const TextOptions& options) {
  std::vector<InputFile> files;
  for (const std::string& name : names) {
    for (const std::string& path : expand(name)) {
      std::vector<std::string> paths{path};
      if (is_directory(path)) paths = files_under(path);
      for (const std::string& file : paths) files.push_back(describe(file, options));
    }
  }
  return files;
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
