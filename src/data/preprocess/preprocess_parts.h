// Folder with the finished parts of a `preprocess` run.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "data/preprocess/preprocess_config.h"

namespace bev {

// Hash of everything that the output depends on: flags, the tokenizer's files, and path, size and
// modification time of the inputs.
std::string preprocess_key(const PreprocessConfig& config, std::span<const InputFile> files);

class PartsFolder {
 public:
  // Creates PREFIX.parts-KEY and removes folders of other keys and unfinished parts. The process
  // must hold the prefix's lock.
  PartsFolder(const std::string& prefix, const std::string& key);
  // Removes the folder if it is empty.
  ~PartsFolder();
  PartsFolder(const PartsFolder&) = delete;
  PartsFolder& operator=(const PartsFolder&) = delete;

  std::string part_prefix(std::int64_t part, const std::string& json_key) const;
  std::string whole_prefix(const std::string& json_key) const;

  // Number of skipped records if the part is finished and its token files exist.
  std::optional<std::int64_t> skipped_if_done(std::int64_t part,
                                              std::span<const std::string> json_keys) const;
  void mark_done(std::int64_t part, std::int64_t skipped) const;
  void forget_all() const;

 private:
  std::string marker(std::int64_t part) const;

  std::string path_;
};

}  // namespace bev
