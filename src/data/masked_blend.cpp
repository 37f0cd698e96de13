#include "data/masked_blend.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "data/indexed_dataset.h"
#include "data/split.h"

namespace bev {

namespace {

// The share of a split that one set of files gives.
struct SplitPart {
  DataSplit split;
  std::string weights;  // of all splits: "969,30,1"

  bool has_share() const {
    constexpr std::int64_t kMuch = std::int64_t{1} << 52;
    auto [first, end] = range(kMuch);
    return first < end;
  }
  std::pair<std::int64_t, std::int64_t> range(std::int64_t total) const {
    std::array<std::int64_t, 4> bounds = split_bounds(weights, total);
    auto at = static_cast<std::size_t>(split);
    return {bounds[at], bounds[at + 1]};
  }
};

// Opens each pair of files once, however many splits and blends use it.
template <class Member>
class MaskedLibrary {
 public:
  using Members = typename MaskedBlend<Member>::Members;

  MaskedLibrary(std::shared_ptr<const MaskedVocabulary> vocabulary,
                const MaskedDataConfig<Member>& config)
      : vocabulary_(std::move(vocabulary)), config_(config) {}

  std::shared_ptr<const Member> member(const std::string& prefix, const SplitPart& part,
                                       std::int64_t samples) {
    std::shared_ptr<const IndexedDataset>& files = opened_[prefix];
    if (!files) files = std::make_shared<IndexedDataset>(prefix);
    SentenceIndexSpec spec;
    std::tie(spec.first_document, spec.end_document) = part.range(files->num_documents());
    if (samples != kOneEpoch) spec.num_samples = samples;
    spec.short_sequence_probability = config_.short_sequence_probability;
    spec.seed = config_.seed;
    Member::describe(config_.samples, spec);
    SentenceLayout layout{files->lengths(), files->documents()};
    SentenceIndex index(layout, spec, config_.cache_path);
    BEV_CHECK(index.num_samples() >= samples, ErrorKind::kInput, prefix, ": the ",
              name_of(part.split), " split (", part.weights, ") has ",
              spec.end_document - spec.first_document, " documents, but none that a sample can be",
              " made of: at least ", spec.least_sentences,
              " sentences, none of several longer than ", kLongestSentence,
              " tokens. Were the files made with sentences split?");
    return std::make_shared<Member>(
        MaskedSentences(files, std::move(index), vocabulary_, config_.seed), config_.samples);
  }

  std::shared_ptr<const MaskedBlend<Member>> blend(const Blend& blend, const SplitPart& part,
                                                   std::int64_t samples) {
    std::vector<double> weights = normalize(blend.weights);
    BEV_CHECK(weights.empty() || samples != kOneEpoch, ErrorKind::kConfig, name_of(part.split),
              " data: a blend by weights needs a number of samples");
    Members members;
    std::int64_t size = 0;
    for (std::size_t i = 0; i < blend.prefixes.size(); ++i) {
      std::int64_t wanted = kOneEpoch;
      if (!weights.empty()) {
        wanted = blend_share_with_surplus(samples, weights[i]);
        size += blend_share(samples, weights[i]);
      }
      members.push_back(member(blend.prefixes[i], part, wanted));
    }
    BlendIndex index =
        weights.empty() ? by_sizes(members, samples) : blend_by_weights(normalize(weights), size);
    return std::make_shared<MaskedBlend<Member>>(std::move(members), std::move(index));
  }

 private:
  static BlendIndex by_sizes(const Members& members, std::int64_t samples) {
    std::vector<std::int64_t> sizes;
    for (const std::shared_ptr<const Member>& member : members) {
      sizes.push_back(member->num_samples());
      BEV_CHECK(sizes.back() > 0, ErrorKind::kInput, member->name(),
                ": has no document that a sample can be made of, so it has no weight in the",
                " blend; leave it out");
    }
    if (samples == kOneEpoch) return blend_exhaustively(sizes);
    std::int64_t size = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
    std::vector<double> weights(sizes.begin(), sizes.end());
    return blend_by_weights(normalize(weights), std::min(samples, size));
  }

  std::shared_ptr<const MaskedVocabulary> vocabulary_;
  const MaskedDataConfig<Member>& config_;
  std::map<std::string, std::shared_ptr<const IndexedDataset>> opened_;
};

}  // namespace

template <class Member>
MaskedBlend<Member>::MaskedBlend(std::shared_ptr<const Member> only) : members_{std::move(only)} {}

template <class Member>
MaskedBlend<Member>::MaskedBlend(Members members, BlendIndex blend)
    : members_(std::move(members)), blend_(std::move(blend)) {
  std::vector<std::int64_t> used(members_.size());
  for (std::int16_t dataset : blend_->datasets().list()) ++used[static_cast<std::size_t>(dataset)];
  for (std::size_t i = 0; i < members_.size(); ++i) {
    BEV_CHECK(used[i] <= members_[i]->num_samples(), ErrorKind::kInput, members_[i]->name(),
              ": the blend takes ", used[i], " samples of the ", members_[i]->num_samples(),
              " that are ready; change the weights or the number of samples a little");
  }
}

template <class Member>
std::int64_t MaskedBlend<Member>::num_samples() const {
  return blend_ ? static_cast<std::int64_t>(blend_->datasets().size())
                : members_.front()->num_samples();
}

template <class Member>
typename Member::Sample MaskedBlend<Member>::sample(std::int64_t index) const {
  if (!blend_) return members_.front()->sample(index);
  BEV_CHECK(index >= 0 && index < num_samples(), ErrorKind::kInternal, "blend: sample ", index,
            " of ", num_samples());
  auto at = static_cast<std::size_t>(index);
  return members_[static_cast<std::size_t>(blend_->datasets()[at])]->sample(blend_->samples()[at]);
}

template <class Member>
MaskedSplits<Member> open_masked_data(const GptSources& sources, const SplitSizes& sizes,
                                      const std::shared_ptr<const MaskedVocabulary>& vocabulary,
                                      const MaskedDataConfig<Member>& config) {
  // A split of its own is the whole of its files.
  constexpr std::array<const char*, 3> kWhole = {"1", "0,1", "0,0,1"};
  MaskedLibrary<Member> library(vocabulary, config);
  MaskedSplits<Member> out;
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (!sizes[i]) continue;
    const std::optional<Blend>& blend = sources.shared ? sources.shared : sources.own[i];
    SplitPart part{static_cast<DataSplit>(i), sources.shared ? sources.split : kWhole[i]};
    BEV_CHECK(blend || *sizes[i] <= 0, ErrorKind::kConfig, "there is no ", name_of(part.split),
              " data, but ", *sizes[i], " samples are asked of it");
    if (!blend) continue;
    if (!part.has_share()) {
      BEV_CHECK(*sizes[i] <= 0, ErrorKind::kInput, "the ", name_of(part.split), " split (",
                part.weights, ") has no share of the data, but ", *sizes[i],
                " samples are asked of it");
      continue;
    }
    // Megatron ignores the weight of a single dataset, unless it is one of --data-path.
    bool plain = blend->prefixes.size() == 1 && (blend->weights.empty() || !sources.shared);
    out[i] = plain ? std::make_shared<MaskedBlend<Member>>(
                         library.member(blend->prefixes[0], part, *sizes[i]))
                   : library.blend(*blend, part, *sizes[i]);
  }
  return out;
}

template class MaskedBlend<BertDataset>;
template class MaskedBlend<T5Dataset>;
template MaskedSplits<BertDataset> open_masked_data(const GptSources&, const SplitSizes&,
                                                    const std::shared_ptr<const MaskedVocabulary>&,
                                                    const MaskedDataConfig<BertDataset>&);
template MaskedSplits<T5Dataset> open_masked_data(const GptSources&, const SplitSizes&,
                                                  const std::shared_ptr<const MaskedVocabulary>&,
                                                  const MaskedDataConfig<T5Dataset>&);

}  // namespace bev
