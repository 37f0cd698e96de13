#include "train/masked_data.h"

#include <utility>

#include "data/batch_file.h"
#include "data/encoder_sample.h"
#include "data/masked/masked_blend.h"
#include "tokenizer/tokenizer.h"
#include "train/token_files.h"

namespace bev {

namespace {

// BERT samples as samples of an encoder.
class MaskedDataset final : public Dataset {
 public:
  MaskedDataset(std::shared_ptr<const MaskedBlend<BertDataset>> samples, bool pairs)
      : samples_(std::move(samples)), pairs_(pairs) {}
  std::int64_t seq_length() const override { return 0; }
  std::int64_t num_samples() const override { return samples_->num_samples(); }
  TokenSample sample(std::int64_t index) const override {
    const BertSample from = samples_->sample(index);
    TokenSample to = encoder_sample({from.tokens, from.types, labels_of(from), from.padding_mask});
    if (pairs_) set_sample_label(to, kNextSentenceLabel, from.is_random ? 1 : 0);
    return to;
  }

 private:
  // Labels of padding are 0, as in Megatron.
  static std::vector<std::int32_t> labels_of(const BertSample& sample) {
    std::vector<std::int32_t> labels = sample.labels;
    for (std::size_t i = 0; i < labels.size(); ++i) {
      if (sample.loss_mask[i] == 0) labels[i] = kIgnoredLabel;
    }
    return labels;
  }

  std::shared_ptr<const MaskedBlend<BertDataset>> samples_;
  bool pairs_;
};

}  // namespace

std::shared_ptr<const MaskedVocabulary> open_masked_vocabulary(const DataConfig& data,
                                                               std::int64_t extra_ids) {
  std::unique_ptr<Tokenizer> tokenizer = open_tokenizer(data.tokenizer, data.tiktoken);
  auto vocabulary = std::make_shared<MaskedVocabulary>(
      read_masked_vocabulary(*tokenizer, data.tokenizer, extra_ids));
  if (data.pad_id >= 0) vocabulary->pad = static_cast<std::int32_t>(data.pad_id);
  return vocabulary;
}

std::array<std::shared_ptr<const Dataset>, 3> open_masked_samples(const DataConfig& data,
                                                                  const SplitSizes& sizes,
                                                                  std::uint64_t seed) {
  const MaskedConfig& flags = data.masked;
  MaskedDataConfig<BertDataset> config;
  config.samples = {data.seq_length, flags.bert_binary_head, flags.masking};
  config.short_sequence_probability = flags.short_seq_prob;
  config.seed = seed;
  config.cache_path = data.data_cache_path;
  auto vocabulary = open_masked_vocabulary(data, 0);
  MaskedSplits<BertDataset> splits = open_masked_data(gpt_sources(data), sizes, vocabulary, config);
  std::array<std::shared_ptr<const Dataset>, 3> out;
  for (std::size_t i = 0; i < splits.size(); ++i) {
    if (!splits[i]) continue;
    out[i] = std::make_shared<MaskedDataset>(splits[i], flags.bert_binary_head);
  }
  return out;
}

}  // namespace bev
