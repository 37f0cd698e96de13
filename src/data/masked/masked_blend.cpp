#include "data/masked/masked_blend.h"

#include <map>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "data/gpt/blended_splits.h"
#include "data/indexed/indexed_dataset.h"

namespace bev {

namespace {

// Opens each .bin/.idx pair once, however many splits and blends use it.
template <class Member>
class MaskedLibrary {
 public:
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

  static std::string why_empty(const Member&) {
    return "has no document that a sample can be made of";
  }

 private:
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
  check_blend<Member>(*blend_, members_);
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
  MaskedLibrary<Member> library(vocabulary, config);
  return open_blended_splits<MaskedBlend<Member>>(sources, sizes, config.cache_path, library);
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
