#include "data/gpt/gpt_blend.h"

#include <map>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "data/gpt/blended_splits.h"
#include "data/indexed/indexed_dataset.h"

namespace bev {

namespace {

using Member = std::shared_ptr<const GptDataset>;

// Opens each .bin/.idx pair once, however many splits and blends use it.
class Library {
 public:
  explicit Library(const GptDataConfig& config) : config_(config) {}

  Member member(const std::string& prefix, const SplitPart& part, std::int64_t samples) {
    std::shared_ptr<const TokenSequences>& files = opened_[prefix];
    if (!files) files = std::make_shared<IndexedDataset>(prefix);
    return member(files, part, samples);
  }

  Member member(std::shared_ptr<const TokenSequences> sequences, const SplitPart& part,
                std::int64_t samples) const {
    PackedArray<std::int32_t> lengths = sequences->lengths();
    GptIndexSpec spec;
    std::tie(spec.first_sequence, spec.end_sequence) =
        part.range(static_cast<std::int64_t>(lengths.size()));
    if (samples != kOneEpoch) spec.num_samples = samples;
    spec.seq_length = config_.samples.seq_length;
    spec.seed = config_.seed;
    spec.extra_token = config_.samples.extra_token;
    spec.keep_partial =
        part.split == DataSplit::kValid && !config_.drop_last_partial_validation_sequence;
    bool empty = true;
    for (std::int64_t i = spec.first_sequence; empty && i < spec.end_sequence; ++i) {
      empty = lengths[static_cast<std::size_t>(i)] == 0;
    }
    BEV_CHECK(!empty || samples <= 0, ErrorKind::kInput, sequences->name(), ": the ",
              name_of(part.split), " split (", part.weights, ") has no tokens, but ", samples,
              " samples are asked of it; change the split or the data");
    return std::make_shared<GptDataset>(
        std::move(sequences), GptIndex(lengths, spec, config_.cache_path), config_.samples);
  }

  static std::string why_empty(const GptDataset& dataset) {
    return concat("is too short for one sample of ", dataset.seq_length(), " tokens");
  }

 private:
  const GptDataConfig& config_;
  std::map<std::string, std::shared_ptr<const TokenSequences>> opened_;
};

}  // namespace

GptBlend::GptBlend(std::shared_ptr<const GptDataset> only) : members_{std::move(only)} {}

GptBlend::GptBlend(std::vector<std::shared_ptr<const GptDataset>> members, BlendIndex blend)
    : members_(std::move(members)), blend_(std::move(blend)) {
  check_blend<GptDataset>(*blend_, members_);
}

std::int64_t GptBlend::num_samples() const {
  return blend_ ? static_cast<std::int64_t>(blend_->datasets().size())
                : members_.front()->num_samples();
}

GptBlend::MemberSample GptBlend::find(std::int64_t index) const {
  if (!blend_) return {0, index};
  BEV_CHECK(index >= 0 && index < num_samples(), ErrorKind::kInternal, "blend: sample ", index,
            " of ", num_samples());
  auto at = static_cast<std::size_t>(index);
  return {static_cast<std::size_t>(blend_->datasets()[at]), blend_->samples()[at]};
}

TokenSample GptBlend::sample(std::int64_t index) const {
  MemberSample at = find(index);
  return members_[at.member]->sample(at.sample);
}

TokenSample GptBlend::sample(std::int64_t index, std::span<RandomState> fim_streams) const {
  MemberSample at = find(index);
  return members_[at.member]->sample(at.sample, fim_streams[at.member]);
}

GptSplits open_gpt_data(const GptSources& sources, const SplitSizes& sizes,
                        const GptDataConfig& config) {
  Library library(config);
  return open_blended_splits<GptBlend>(sources, sizes, config.cache_path, library);
}

GptSplits open_mock_gpt_data(const SplitSizes& sizes, const GptDataConfig& config) {
  Library library(config);
  auto sequences =
      std::make_shared<MockSequences>(config.samples.vocab_size, config.samples.eod_id);
  GptSplits out;
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (!sizes[i]) continue;
    out[i] = std::make_shared<GptBlend>(
        library.member(sequences, {static_cast<DataSplit>(i), "1,1,1"}, *sizes[i]));
  }
  return out;
}

}  // namespace bev
