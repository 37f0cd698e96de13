// Text files as byte tokens, and samples cut from them.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "data/dataset.h"

namespace bev {

// The bytes of all files, one document each, one after the other. Large files are mapped, small
// ones read.
class TextCorpus {
 public:
  // Files are taken in the order given; a folder stands for all regular files under it, sorted by
  // path (links to folders are not followed). Error when one cannot be read or there is no text at
  // all.
  explicit TextCorpus(std::span<const std::string> paths);

  std::int64_t num_tokens() const { return num_tokens_; }
  // Files that are not empty.
  std::int64_t num_documents() const { return static_cast<std::int64_t>(documents_.size()); }
  // Tokens [begin, begin + tokens.size()), which must exist.
  void read(std::int64_t begin, std::span<std::int32_t> tokens) const;

 private:
  struct Document {
    std::int64_t begin = 0;
    std::string text;                   // a small file
    std::unique_ptr<MappedFile> large;  // or a large one
    std::string_view bytes() const;
  };
  void add_file(const std::string& path);

  std::vector<Document> documents_;
  std::int64_t num_tokens_ = 0;
};

enum class DataSplit : std::uint8_t { kTrain, kValid, kTest };
const char* name_of(DataSplit split);

// Cuts [0, total) by one to three weights ("969,30,1"): split i is [bounds[i], bounds[i + 1]).
// Bounds are the cumulative shares rounded half to even, as in Megatron. Error(kConfig) when the
// text is not that.
std::array<std::int64_t, 4> split_bounds(std::string_view weights, std::int64_t total);

struct TextDatasetConfig {
  std::int64_t seq_length = 0;
  std::string split = "969,30,1";
  DataSplit part = DataSplit::kTrain;
  std::uint64_t seed = 0;
  bool shuffle = true;
};

// Windows of seq_length + 1 tokens at stride seq_length over one split, so that every token but the
// first is a target once an epoch; each epoch has its own order. A tail shorter than a window is
// left out.
class TextDataset : public WindowDataset {
 public:
  TextDataset(std::shared_ptr<const TextCorpus> corpus, const TextDatasetConfig& config);

  std::int64_t seq_length() const override { return config_.seq_length; }
  std::int64_t num_samples() const override { return num_samples_; }
  // Error(kInput) when the split is too short for one sample.
  void window(std::int64_t index, std::span<std::int32_t> tokens) const override;

 private:
  std::shared_ptr<const TextCorpus> corpus_;
  TextDatasetConfig config_;
  std::int64_t begin_ = 0;
  std::int64_t num_tokens_ = 0;
  std::int64_t num_samples_ = 0;
};

}  // namespace bev
