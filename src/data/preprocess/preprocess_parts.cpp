#include "data/preprocess/preprocess_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "data/indexed/content_hash.h"
#include "data/indexed/indexed_dataset.h"

namespace bev {

namespace {
namespace fs = std::filesystem;

constexpr std::string_view kFolderWord = ".parts-";
constexpr std::string_view kFormat = "bevatron preprocess 1";

// Files that a tokenizer may be read from, without the model weights in the same folder.
std::vector<std::string> tokenizer_files(const std::string& tokenizer) {
  if (!is_directory(tokenizer)) {
    std::string file = tokenizer;
    if (!path_exists(file)) file = file.substr(0, file.find_last_of(':'));  // FILE:PATTERN
    if (!path_exists(file)) return {};  // a name: byte, null:SIZE
    std::vector<std::string> files{file};
    std::string settings = join_path(parent_path(file), "tokenizer_config.json");
    if (settings != file && path_exists(settings)) files.push_back(settings);
    return files;
  }
  std::vector<std::string> files;
  for (const std::string& name : list_directory(tokenizer)) {
    for (std::string_view ending : {".json", ".model", ".txt", ".tiktoken"}) {
      if (name.ends_with(ending)) files.push_back(join_path(tokenizer, name));
    }
  }
  return files;
}

}  // namespace

std::string preprocess_key(const PreprocessConfig& config, std::span<const InputFile> files) {
  std::string text = concat(kFormat, "\n", config.tokenizer, "\n", config.tiktoken.pattern, "\n");
  std::vector<std::string> sources = tokenizer_files(config.tokenizer);
  if (!config.tiktoken.special_tokens.empty()) sources.push_back(config.tiktoken.special_tokens);
  for (const std::string& path : sources) {
    MappedFile file(path);
    text += concat(path, " ", hash_bytes(file.bytes(), 0), "\n");
  }
  for (const InputFile& file : files) {
    text += concat(fs::absolute(file.path).string(), " ", static_cast<int>(file.format), " ",
                   file.bytes, " ", file.modified_ns, "\n");
  }
  text +=
      concat(join(config.text.json_keys, "\n"), "\n", config.append_eod, config.add_special_tokens,
             config.split_sentences, config.keep_newlines, " ",
             static_cast<int>(config.text.on_error), " ", static_cast<int>(config.text.unit), " ",
             config.text.piece_bytes, " ", config.text.max_document_bytes, " ", config.partitions);
  return fmt::format("{:016x}", hash_bytes(std::as_bytes(std::span(text)), 0));
}

PartsFolder::PartsFolder(const std::string& prefix, const std::string& key)
    : path_(concat(prefix, kFolderWord, key)) {
  std::string parent = parent_path(prefix), own = fs::path(path_).filename().string();
  std::string start = own.substr(0, own.size() - key.size());
  for (const std::string& name : list_directory(parent)) {
    if (!name.starts_with(start) || name.size() != own.size() || name == own) continue;
    std::string path = join_path(parent, name);
    log_info(concat("removing ", path, ": parts of an interrupted run with other flags or inputs"));
    fs::remove_all(path);
  }
  make_directories(path_);
  for (const std::string& name : list_directory(path_)) {
    if (name.ends_with(".tmp")) fs::remove(join_path(path_, name));
  }
}

PartsFolder::~PartsFolder() {
  std::error_code kept;
  fs::remove(path_, kept);
}

std::string PartsFolder::part_prefix(std::int64_t part, const std::string& json_key) const {
  return join_path(path_, fmt::format("part-{:05}_{}", part, json_key));
}

std::string PartsFolder::whole_prefix(const std::string& json_key) const {
  return join_path(path_, concat("whole_", json_key));
}

std::string PartsFolder::marker(std::int64_t part) const {
  return join_path(path_, fmt::format("part-{:05}.done", part));
}

std::optional<std::int64_t> PartsFolder::skipped_if_done(
    std::int64_t part, std::span<const std::string> json_keys) const {
  if (!path_exists(marker(part))) return std::nullopt;
  for (const std::string& key : json_keys) {
    std::string prefix = part_prefix(part, key);
    if (!path_exists(tokens_path(prefix)) || !path_exists(index_path(prefix))) return std::nullopt;
  }
  std::string text = read_file(marker(part));
  std::int64_t skipped = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), skipped);
  bool whole = error == std::errc() && std::string_view(end) == "\n";
  return whole ? std::optional(skipped) : std::nullopt;
}

void PartsFolder::mark_done(std::int64_t part, std::int64_t skipped) const {
  write_file(marker(part), concat(skipped, "\n"));
}

void PartsFolder::forget_all() const {
  for (const std::string& name : list_directory(path_)) fs::remove(join_path(path_, name));
}

}  // namespace bev
