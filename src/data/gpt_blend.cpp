#include "data/gpt_blend.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "data/indexed_dataset.h"

namespace bev {

namespace {

using Member = std::shared_ptr<const GptDataset>;

// Whether enough data would give the split some of it.
bool has_share(const std::string& split, DataSplit part) {
  constexpr std::int64_t kMuch = std::int64_t{1} << 52;
  std::array<std::int64_t, 4> bounds = split_bounds(split, kMuch);
  auto at = static_cast<std::size_t>(part);
  return bounds[at] < bounds[at + 1];
}

// Opens each pair of files once, however many splits and blends use it.
class Library {
 public:
  explicit Library(const GptDataConfig& config) : config_(config) {}

  std::shared_ptr<const TokenSequences> sequences(const std::string& prefix) {
    std::shared_ptr<const TokenSequences>& entry = opened_[prefix];
    if (!entry) entry = std::make_shared<IndexedDataset>(prefix);
    return entry;
  }

  Member member(std::shared_ptr<const TokenSequences> sequences, DataSplit part,
                const std::string& split, std::int64_t samples) const {
    PackedArray<std::int32_t> lengths = sequences->lengths();
    std::array<std::int64_t, 4> bounds =
        split_bounds(split, static_cast<std::int64_t>(lengths.size()));
    GptIndexSpec spec;
    spec.first_sequence = bounds[static_cast<std::size_t>(part)];
    spec.end_sequence = bounds[static_cast<std::size_t>(part) + 1];
    if (samples != kOneEpoch) spec.num_samples = samples;
    spec.seq_length = config_.samples.seq_length;
    spec.seed = config_.seed;
    spec.extra_token = config_.samples.extra_token;
    spec.keep_partial = part == DataSplit::kValid && !config_.drop_last_partial_validation_sequence;
    bool empty = true;
    for (std::int64_t i = spec.first_sequence; empty && i < spec.end_sequence; ++i) {
      empty = lengths[static_cast<std::size_t>(i)] == 0;
    }
    BEV_CHECK(!empty || samples <= 0, ErrorKind::kInput, sequences->name(), ": the ", name_of(part),
              " split (", split, ") has no tokens, but ", samples,
              " samples are asked of it; change the split or the data");
    return std::make_shared<GptDataset>(
        std::move(sequences), GptIndex(lengths, spec, config_.cache_path), config_.samples);
  }

  std::shared_ptr<const GptBlend> blend(const Blend& blend, DataSplit part,
                                        const std::string& split, std::int64_t samples) {
    std::vector<double> weights = normalize(blend.weights);
    BEV_CHECK(weights.empty() || samples != kOneEpoch, ErrorKind::kConfig, name_of(part),
              " data: a blend by weights needs a number of samples");
    std::vector<Member> members;
    std::int64_t size = 0;
    for (std::size_t i = 0; i < blend.prefixes.size(); ++i) {
      std::int64_t wanted = kOneEpoch;
      if (!weights.empty()) {
        wanted = blend_share_with_surplus(samples, weights[i]);
        size += blend_share(samples, weights[i]);
      }
      members.push_back(member(sequences(blend.prefixes[i]), part, split, wanted));
    }
    if (!weights.empty()) {
      return std::make_shared<GptBlend>(
          std::move(members), blend_by_weights(normalize(weights), size, config_.cache_path));
    }
    return by_sizes(std::move(members), samples);
  }

 private:
  std::shared_ptr<const GptBlend> by_sizes(std::vector<Member> members,
                                           std::int64_t samples) const {
    std::vector<std::int64_t> sizes;
    for (const Member& member : members) {
      sizes.push_back(member->num_samples());
      BEV_CHECK(sizes.back() > 0, ErrorKind::kInput, member->name(),
                ": is too short for one sample of ", member->seq_length(),
                " tokens, so it has no weight in the blend; leave it out");
    }
    if (samples == kOneEpoch) {
      return std::make_shared<GptBlend>(std::move(members),
                                        blend_exhaustively(sizes, config_.cache_path));
    }
    std::int64_t size = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
    std::vector<double> weights(sizes.begin(), sizes.end());
    return std::make_shared<GptBlend>(
        std::move(members),
        blend_by_weights(normalize(weights), std::min(samples, size), config_.cache_path));
  }

  const GptDataConfig& config_;
  std::map<std::string, std::shared_ptr<const TokenSequences>> opened_;
};

}  // namespace

GptBlend::GptBlend(std::shared_ptr<const GptDataset> only) : members_{std::move(only)} {}

GptBlend::GptBlend(std::vector<std::shared_ptr<const GptDataset>> members, BlendIndex blend)
    : members_(std::move(members)), blend_(std::move(blend)) {
  std::vector<std::int64_t> used(members_.size());
  PackedArray<std::int16_t> datasets = blend_->datasets();
  for (std::size_t i = 0; i < datasets.size(); ++i) {
    auto dataset = static_cast<std::size_t>(datasets[i]);
    BEV_CHECK(dataset < used.size(), ErrorKind::kInput, "the blend index has dataset ", datasets[i],
              " of ", used.size(), " at sample ", i);
    ++used[dataset];
  }
  for (std::size_t i = 0; i < members_.size(); ++i) {
    BEV_CHECK(used[i] <= members_[i]->num_samples(), ErrorKind::kInput, members_[i]->name(),
              ": the blend takes ", used[i], " samples of the ", members_[i]->num_samples(),
              " that are ready; change the weights or the number of samples a little");
  }
}

std::int64_t GptBlend::num_samples() const {
  return blend_ ? static_cast<std::int64_t>(blend_->datasets().size())
                : members_.front()->num_samples();
}

GptBlend::Place GptBlend::find(std::int64_t index) const {
  if (!blend_) return {0, index};
  BEV_CHECK(index >= 0 && index < num_samples(), ErrorKind::kInternal, "blend: sample ", index,
            " of ", num_samples());
  auto at = static_cast<std::size_t>(index);
  return {static_cast<std::size_t>(blend_->datasets()[at]), blend_->samples()[at]};
}

TokenSample GptBlend::sample(std::int64_t index) const {
  Place at = find(index);
  return members_[at.member]->sample(at.sample);
}

TokenSample GptBlend::sample(std::int64_t index, std::span<RandomState> fim_streams) const {
  Place at = find(index);
  return members_[at.member]->sample(at.sample, fim_streams[at.member]);
}

GptSplits open_gpt_data(const GptSources& sources, const SplitSizes& sizes,
                        const GptDataConfig& config) {
  Library library(config);
  GptSplits out;
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (!sizes[i]) continue;
    const std::optional<Blend>& blend = sources.shared ? sources.shared : sources.own[i];
    auto part = static_cast<DataSplit>(i);
    BEV_CHECK(blend || *sizes[i] <= 0, ErrorKind::kConfig, "there is no ", name_of(part),
              " data, but ", *sizes[i], " samples are asked of it");
    if (!blend) continue;
    // A split of its own is the whole of its files.
    constexpr std::array<const char*, 3> kWhole = {"1", "0,1", "0,0,1"};
    std::string split = sources.shared ? sources.split : kWhole[i];
    if (!has_share(split, part)) {
      BEV_CHECK(*sizes[i] <= 0, ErrorKind::kInput, "the ", name_of(part), " split (", split,
                ") has no share of the data, but ", *sizes[i], " samples are asked of it");
      continue;
    }
    // Megatron ignores the weight of a single dataset, unless it is one of --data-path.
    bool plain = blend->prefixes.size() == 1 && (blend->weights.empty() || !sources.shared);
    out[i] = plain ? std::make_shared<GptBlend>(library.member(
                         library.sequences(blend->prefixes[0]), part, split, *sizes[i]))
                   : library.blend(*blend, part, split, *sizes[i]);
  }
  return out;
}

GptSplits open_mock_gpt_data(const SplitSizes& sizes, const GptDataConfig& config) {
  Library library(config);
  auto sequences =
      std::make_shared<MockSequences>(config.samples.vocab_size, config.samples.eod_id);
  GptSplits out;
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (!sizes[i]) continue;
    out[i] = std::make_shared<GptBlend>(
        library.member(sequences, static_cast<DataSplit>(i), "1,1,1", *sizes[i]));
  }
  return out;
}

}  // namespace bev
