// GPT data of a run: one or more datasets per split, blended by Megatron's rules.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/gpt/blend.h"
#include "data/gpt/gpt_dataset.h"
#include "data/gpt/split.h"

namespace bev {

// A single dataset, or several in the order of a blend.
class GptBlend : public Dataset {
 public:
  explicit GptBlend(std::shared_ptr<const GptDataset> only);
  // Throws Error(kInput) if the blend takes more samples from a dataset than it has.
  GptBlend(std::vector<std::shared_ptr<const GptDataset>> members, BlendIndex blend);

  std::int64_t seq_length() const override { return members_.front()->seq_length(); }
  std::int64_t num_samples() const override;
  TokenSample sample(std::int64_t index) const override;
  // With one random stream per member; see GptDataset.
  TokenSample sample(std::int64_t index, std::span<RandomState> fim_streams) const;

  const std::vector<std::shared_ptr<const GptDataset>>& members() const { return members_; }
  // nullopt for a single dataset without a weight.
  const std::optional<BlendIndex>& blend() const { return blend_; }

 private:
  struct MemberSample {
    std::size_t member;
    std::int64_t sample;
  };
  MemberSample find(std::int64_t index) const;

  std::vector<std::shared_ptr<const GptDataset>> members_;
  std::optional<BlendIndex> blend_;
};

// Data sources: one blend divided into splits, or a separate blend per split.
struct GptSources {
  std::optional<Blend> shared;
  std::string split = "969,30,1";
  std::array<std::optional<Blend>, 3> own;
};

// Samples of training, validation and test; nullopt: the split is not needed; kOneEpoch: one pass
// over the data.
inline constexpr std::int64_t kOneEpoch = -1;
using SplitSizes = std::array<std::optional<std::int64_t>, 3>;

struct GptDataConfig {
  GptSampleConfig samples;
  std::uint64_t seed = 1234;
  bool drop_last_partial_validation_sequence = true;
  std::string cache_path;  // folder of index files; "": indices are kept in memory
};

using GptSplits = std::array<std::shared_ptr<const GptBlend>, 3>;

// A split is null if it is not needed, or has no share and no samples are requested. Throws
// Error(kInput) naming split and dataset if samples are requested and there are no tokens.
GptSplits open_gpt_data(const GptSources& sources, const SplitSizes& sizes,
                        const GptDataConfig& config);
// The same over Megatron's mock documents, one third for each split.
GptSplits open_mock_gpt_data(const SplitSizes& sizes, const GptDataConfig& config);

}  // namespace bev
