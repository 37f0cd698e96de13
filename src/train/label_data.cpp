#include "train/label_data.h"

#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/philox.h"
#include "data/labelled/example_encoder.h"
#include "data/random/shuffle.h"

namespace bev {

namespace {

std::vector<TextExample> read_files(const DataConfig& config,
                                    const std::vector<std::string>& files) {
  std::vector<TextExample> all;
  for (const std::string& file : files) {
    for (TextExample& example :
         read_text_examples(file, *config.preferences.text_task(), config.labels.columns, true)) {
      all.push_back(std::move(example));
    }
  }
  return all;
}

class LabelDataset final : public Dataset {
 public:
  LabelDataset(std::vector<TokenSample> samples, std::uint64_t seed, bool shuffle)
      : samples_(std::move(samples)), seed_(seed), shuffle_(shuffle) {}
  std::int64_t seq_length() const override { return 0; }
  std::int64_t num_samples() const override { return std::ssize(samples_); }
  // Indices beyond the last sample continue with the next epoch.
  TokenSample sample(std::int64_t index) const override {
    std::int64_t count = num_samples(), epoch = index / count, at = index % count;
    if (shuffle_) {
      at = permute_index(at, count, mix_bits(seed_, static_cast<std::uint64_t>(epoch)));
    }
    return samples_[static_cast<std::size_t>(at)];
  }

 private:
  std::vector<TokenSample> samples_;
  std::uint64_t seed_;
  bool shuffle_;
};

ExampleFormat format_of(const DataConfig& config) {
  ExampleFormat format;
  format.task = *config.preferences.text_task();
  format.labels = run_label_names(config);
  format.weights = config.labels.class_weights;
  format.max_length = config.seq_length;
  format.token_types = config.labels.token_types;
  format.double_separator = config.labels.double_separator;
  BEV_CHECK(format.weights.empty() || format.weights.size() == format.labels.size(),
            ErrorKind::kConfig, "--class-weights: ", format.weights.size(), " weights for ",
            format.labels.size(), " labels (", join(format.labels, ", "), "); give one for each");
  return format;
}

void check_ids(const TokenSample& sample, std::int64_t vocab_size, const std::string& where) {
  for (std::int32_t token : sample.tokens) {
    BEV_CHECK(token < vocab_size, ErrorKind::kInput, where, ": the tokenizer gives token ", token,
              ", outside of the model's vocabulary of ", vocab_size);
  }
}

}  // namespace

std::vector<std::string> run_label_names(const DataConfig& config) {
  const std::optional<TextTask> task = config.preferences.text_task();
  const bool named = task == TextTask::kClasses || task == TextTask::kTags;
  if (!named || !config.labels.names.empty()) return config.labels.names;
  return label_names(read_files(config, config.preferences.data));
}

std::shared_ptr<const Dataset> open_label_data(const DataConfig& config, DataSplit split,
                                               std::int64_t vocab_size, std::uint64_t seed) {
  const bool training = split == DataSplit::kTrain;
  const PreferenceConfig& flags = config.preferences;
  std::unique_ptr<Tokenizer> tokenizer = open_tokenizer(config.tokenizer, config.tiktoken);
  const ExampleEncoder encoder(*tokenizer, format_of(config));
  std::vector<TokenSample> samples;
  std::int64_t tokens = 0, cut = 0;
  for (const TextExample& example : read_files(config, training ? flags.data : flags.valid_data)) {
    EncodedExample encoded = encoder.encode(example);
    check_ids(encoded.sample, vocab_size, example.where);
    cut += encoded.answer_cut ? 1 : 0;
    if (encoded.answer_cut) continue;
    tokens += std::ssize(encoded.sample.tokens);
    samples.push_back(std::move(encoded.sample));
  }
  BEV_CHECK(!samples.empty(), ErrorKind::kInput, "--data: no example is left; all ", cut,
            " answers are behind --seq-length ", config.seq_length, " tokens, so raise it");
  log_info(concat(name_of(split), " data: ", samples.size(), " examples, ", tokens, " tokens",
                  cut > 0 ? concat("; ", cut, " left out, whose answers are cut off") : ""));
  return std::make_shared<LabelDataset>(std::move(samples), seed, training);
}

}  // namespace bev
