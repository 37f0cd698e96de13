#include "data/preprocess/text_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "base/error.h"
#include "data/preprocess/byte_stream.h"
#include "tokenizer/text/utf8.h"

namespace bev {

namespace {
namespace fs = std::filesystem;

constexpr std::size_t kStartBytes = 1 << 16;

constexpr std::string_view kJsonEndings[] = {".jsonl", ".json", ".ndjson"};
constexpr std::string_view kTextEndings[] = {
    ".txt",  ".text", ".md",    ".markdown", ".rst",  ".tex",  ".org",  ".adoc", ".log", ".csv",
    ".tsv",  ".html", ".htm",   ".xml",      ".yaml", ".yml",  ".toml", ".ini",  ".cfg", ".conf",
    ".py",   ".pyi",  ".c",     ".h",        ".cc",   ".cpp",  ".cxx",  ".hpp",  ".hh",  ".cu",
    ".cuh",  ".java", ".kt",    ".scala",    ".rs",   ".go",   ".js",   ".mjs",  ".ts",  ".jsx",
    ".tsx",  ".css",  ".scss",  ".rb",       ".pl",   ".php",  ".sh",   ".bash", ".lua", ".r",
    ".jl",   ".hs",   ".ml",    ".swift",    ".sql",  ".f90",  ".f",    ".asm",  ".s",   ".cmake",
    ".mk",   ".tf",   ".proto", ".vim",      ".el",   ".lisp", ".clj",  ".ex",   ".exs", ".erl",
    ".dart", ".srt",  ".vtt",   ".po",       ".bib",  ".diff", ".patch"};

enum class Content : std::uint8_t { kEmpty, kUtf8, kOtherText, kUtf16, kBinary, kParquet };

// `text` without a character that is cut at its end.
std::string_view without_cut_character(std::string_view text) {
  for (std::size_t back = 1; back <= std::min<std::size_t>(text.size(), 3); ++back) {
    char byte = text[text.size() - back];
    if ((static_cast<unsigned char>(byte) & 0xc0) == 0x80) continue;
    if (point_bytes(byte) > back) text.remove_suffix(back);
    break;
  }
  return text;
}

bool has_control_characters(std::string_view text) {
  constexpr std::string_view kUsual = "\t\n\v\f\r\b\x1b";  // ESC colours logs
  return std::ranges::any_of(text, [&](char c) {
    return static_cast<unsigned char>(c) < 0x20 && kUsual.find(c) == kUsual.npos;
  });
}

Content content_of(const ContentStart& start) {
  std::string_view text = start.bytes;
  if (text.empty()) return Content::kEmpty;
  if (text.starts_with("PAR1") && text.find('\0') != text.npos) return Content::kParquet;
  if (text.starts_with("\xff\xfe") || text.starts_with("\xfe\xff")) return Content::kUtf16;
  if (text.find('\0') != text.npos || text.starts_with("%PDF-")) return Content::kBinary;
  if (!start.whole) text = without_cut_character(text);
  return is_valid_utf8(text) && !has_control_characters(text) ? Content::kUtf8
                                                              : Content::kOtherText;
}

// Name of a file in lower case, without the ending of an archive.
std::string plain_name(std::string_view path) {
  std::string name(path.substr(path.find_last_of('/') + 1));
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (std::string_view archive : {".gz", ".zst"}) {
    if (name.ends_with(archive)) name.resize(name.size() - archive.size());
  }
  return name;
}

// True if one of the keys is in the text, as JSON writes a key.
bool has_key(std::string_view text, const std::vector<std::string>& keys) {
  return std::ranges::any_of(keys, [&](const std::string& key) {
    std::string quoted = concat("\"", key, "\"");
    for (std::size_t at = text.find(quoted); at != text.npos; at = text.find(quoted, at + 1)) {
      std::size_t next = text.find_first_not_of(" \t\r\n", at + quoted.size());
      if (next == text.npos || text[next] == ':') return true;
    }
    return false;
  });
}

// Objects on lines or in an array, with one of the keys. A .json file may as well be a settings
// file: one object over many lines, or other keys.
bool looks_like_records(std::string_view text, const std::vector<std::string>& keys) {
  std::size_t first = text.find_first_not_of("\xef\xbb\xbf \t\r\n");
  if (first == text.npos || !has_key(text, keys)) return false;
  text.remove_prefix(first);
  if (text[0] == '[') {
    std::size_t entry = text.find_first_not_of(" \t\r\n", 1);
    return entry != text.npos && text[entry] == '{';
  }
  std::string_view line = text.substr(0, text.find('\n'));
  if (line.size() == text.size()) return text[0] == '{';
  line = line.substr(0, line.find_last_not_of(" \t\r") + 1);
  return line[0] == '{' && line.ends_with('}');
}

FileVerdict leave_out(LeftOutReason reason, std::string problem) {
  return {std::nullopt, false, reason, std::move(problem)};
}

FileVerdict judge_in_folder(const std::string& path, const ContentStart& start, Content content,
                            const TextOptions& options) {
  if (content == Content::kEmpty) return leave_out(LeftOutReason::kEmpty, "");
  std::optional<TextFormat> by_name = format_of_name(path);
  if (!by_name && content == Content::kOtherText) return leave_out(LeftOutReason::kBinary, "");
  bool any_json = plain_name(path).ends_with(".json") || !by_name;
  bool records = by_name == TextFormat::kJsonLines && !any_json;
  if (any_json) records = looks_like_records(start.bytes, options.json_keys);
  if (options.only_records && !records) return leave_out(LeftOutReason::kPlain, "");
  if (options.format != TextFormat::kByName) return {.format = options.format};
  // Records in a file of unknown ending would be a surprise: it is text like its neighbours.
  if (by_name && records) return {.format = TextFormat::kJsonLines};
  return {.format = TextFormat::kText, .foreign_json = by_name == TextFormat::kJsonLines};
}

}  // namespace

void LeftOut::add(LeftOutReason reason, const std::string& name) {
  constexpr std::size_t kNames = 3;
  Group& group = groups_[static_cast<std::size_t>(reason)];
  ++group.count;
  if (group.first.size() < kNames) group.first.push_back(name);
}

std::int64_t LeftOut::count(LeftOutReason reason) const {
  return groups_[static_cast<std::size_t>(reason)].count;
}

bool LeftOut::empty() const {
  return std::ranges::all_of(groups_, [](const Group& group) { return group.count == 0; });
}

std::string LeftOut::text() const {
  constexpr std::array<const char*, kLeftOutReasons> kWords = {
      "hidden", "binary", "in UTF-16", "empty", "of plain text", "linked", "special"};
  std::vector<std::string> out;
  for (std::size_t i = 0; i < kLeftOutReasons; ++i) {
    const Group& group = groups_[i];
    if (group.count == 0) continue;
    bool more = static_cast<std::size_t>(group.count) > group.first.size();
    out.push_back(fmt::format("{} {} ({}{})", group.count, kWords[i], join(group.first, ", "),
                              more ? ", ..." : ""));
  }
  return join(out, ", ");
}

std::vector<std::string> files_under(const std::string& folder, LeftOut& left_out) {
  std::vector<std::string> files;
  std::vector<std::pair<std::string, LeftOutReason>> others;  // a folder lists in any order
  std::error_code error;
  fs::recursive_directory_iterator entry(folder, error), end;
  for (; !error && entry != end; entry.increment(error)) {
    std::string name = entry->path().lexically_relative(folder).string();
    std::error_code dangling;  // the status of a link to nothing
    if (entry->path().filename().string().starts_with('.')) {
      if (entry->is_directory(dangling)) entry.disable_recursion_pending();
      others.emplace_back(name, LeftOutReason::kHidden);
    } else if (entry->is_regular_file(dangling)) {
      files.push_back(entry->path().string());
    } else if (entry->is_symlink(dangling)) {
      others.emplace_back(name, LeftOutReason::kLink);
    } else if (!entry->is_directory(dangling)) {
      others.emplace_back(name, LeftOutReason::kSpecial);
    }
  }
  BEV_CHECK(!error, ErrorKind::kInput, "cannot list ", folder, ": ", error.message());
  std::ranges::sort(files);
  std::ranges::sort(others);
  for (const auto& [name, reason] : others) left_out.add(reason, name);
  return files;
}

ContentStart read_content_start(const std::string& path) {
  ContentStart start;
  start.bytes.resize(kStartBytes);
  std::size_t count = open_byte_stream(path)->read(start.bytes);
  start.whole = count < kStartBytes;
  start.bytes.resize(count);
  return start;
}

std::optional<TextFormat> format_of_name(std::string_view path) {
  std::string name = plain_name(path);
  auto ends = [&](std::string_view ending) { return name.ends_with(ending); };
  if (ends(".parquet")) return TextFormat::kParquet;
  if (std::ranges::any_of(kJsonEndings, ends)) return TextFormat::kJsonLines;
  if (std::ranges::any_of(kTextEndings, ends)) return TextFormat::kText;
  return std::nullopt;
}

FileVerdict judge_file(const std::string& path, const ContentStart& start,
                       const TextOptions& options, bool named) {
  Content content = content_of(start);
  bool parquet = content == Content::kParquet || format_of_name(path) == TextFormat::kParquet;
  if (parquet && options.format != TextFormat::kText) return {.format = TextFormat::kParquet};
  // --input-format text lets bytes be bytes.
  if (named && options.format == TextFormat::kText) return {.format = TextFormat::kText};
  if (content == Content::kUtf16) {
    return leave_out(LeftOutReason::kUtf16,
                     concat("is UTF-16, and text is read as UTF-8; convert it: iconv -f UTF-16 -t "
                            "UTF-8 ",
                            path));
  }
  bool binary = content == Content::kBinary || content == Content::kParquet;
  bool unknown = !format_of_name(path) && options.format == TextFormat::kByName;
  if (binary || (named && unknown && content == Content::kOtherText)) {
    return leave_out(LeftOutReason::kBinary,
                     "is a binary file, no text; give text, JSON or Parquet (.txt, .jsonl, "
                     ".parquet, ...)");
  }
  if (!named) return judge_in_folder(path, start, content, options);
  if (options.format != TextFormat::kByName) return {.format = options.format};
  return {.format = format_of_name(path).value_or(TextFormat::kText)};
}

}  // namespace bev
