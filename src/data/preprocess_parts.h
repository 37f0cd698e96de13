// The folder in which a run of `preprocess` keeps the parts that are done.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "data/preprocess_config.h"

namespace bev {

// Names everything that the output depends on: flags, the tokenizer's files, and path, size and
// time of the inputs.
std::string preprocess_key(const PreprocessConfig& config, std::span<const InputFile> files);

class PartsFolder {
 public:
  // Makes PREFIX.parts-KEY, and removes what other keys, or parts that were not finished, left
  // there. For a process that holds the prefix's lock.
  PartsFolder(const std::string& prefix, const std::string& key);
  // Removes the folder where it is empty: nothing is kept for later.
  ~PartsFolder();
  PartsFolder(const PartsFolder&) = delete;
  PartsFolder& operator=(const PartsFolder&) = delete;

  std::string part_prefix(std::int64_t part, const std::string& json_key) const;
  std::string whole_prefix(const std::string& json_key) const;

  // The skipped records of a part that is done; its token files are there then.
  std::optional<std::int64_t> skipped_if_done(std::int64_t part,
                                              std::span<const std::string> json_keys) const;
  void mark_done(std::int64_t part, std::int64_t skipped) const;
  void forget_all() const;

 private:
  std::string marker(std::int64_t part) const;

  std::string path_;
};

}  // namespace bev
