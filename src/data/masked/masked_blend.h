// BERT or T5 data of a run: one or more datasets per split, blended by Megatron's rules. Splits are
// shares of documents.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/gpt/blend.h"
#include "data/gpt/gpt_blend.h"
#include "data/masked/bert_dataset.h"
#include "data/masked/t5_dataset.h"

namespace bev {

// A single dataset, or several in the order of a blend. A member is a BertDataset or a T5Dataset.
template <class Member>
class MaskedBlend {
 public:
  using Members = std::vector<std::shared_ptr<const Member>>;

  explicit MaskedBlend(std::shared_ptr<const Member> only);
  // Throws Error(kInput) if the blend takes more samples from a dataset than it has.
  MaskedBlend(Members members, BlendIndex blend);

  std::int64_t num_samples() const;
  typename Member::Sample sample(std::int64_t index) const;

  const Members& members() const { return members_; }
  // nullopt for a single dataset without a weight.
  const std::optional<BlendIndex>& blend() const { return blend_; }

 private:
  Members members_;
  std::optional<BlendIndex> blend_;
};

template <class Member>
struct MaskedDataConfig {
  typename Member::Config samples;
  double short_sequence_probability = 0.1;
  std::uint64_t seed = 1234;
  std::string cache_path;  // folder of index files; "": indices are kept in memory
};

template <class Member>
using MaskedSplits = std::array<std::shared_ptr<const MaskedBlend<Member>>, 3>;

// A split is null if it is not needed, or has no share and no samples are requested. Throws
// Error(kInput) naming split and dataset if samples are requested and no document is usable.
template <class Member>
MaskedSplits<Member> open_masked_data(const GptSources& sources, const SplitSizes& sizes,
                                      const std::shared_ptr<const MaskedVocabulary>& vocabulary,
                                      const MaskedDataConfig<Member>& config);

extern template class MaskedBlend<BertDataset>;
extern template class MaskedBlend<T5Dataset>;
extern template MaskedSplits<BertDataset> open_masked_data(
    const GptSources&, const SplitSizes&, const std::shared_ptr<const MaskedVocabulary>&,
    const MaskedDataConfig<BertDataset>&);
extern template MaskedSplits<T5Dataset> open_masked_data(
    const GptSources&, const SplitSizes&, const std::shared_ptr<const MaskedVocabulary>&,
    const MaskedDataConfig<T5Dataset>&);

}  // namespace bev
