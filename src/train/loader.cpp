#include "train/loader.h"

#include "base/error.h"
#include "data/mock_dataset.h"
#include "data/text_corpus.h"
#include "train/sft_data.h"
#include "train/token_files.h"

namespace bev {

namespace {

RunData open_token_files(const DataConfig& config, std::int64_t vocab_size, std::uint64_t seed,
                         const SampleNeeds& needs) {
  GptSplits splits = open_gpt_data(gpt_sources(config), {needs.train, needs.valid, std::nullopt},
                                   gpt_data_config(config, vocab_size, seed));
  auto check = [](const GptBlend* data, std::int64_t wanted, const char* what) {
    std::int64_t there = data ? data->num_samples() : 0;
    BEV_CHECK(there >= wanted, ErrorKind::kInput, "the ", what, " blend has ", there,
              " samples in one epoch and the run takes ", wanted,
              "; give weights to go over the data again");
  };
  check(splits[0].get(), needs.train, "training");
  if (needs.valid) check(splits[1].get(), *needs.valid, "validation");
  RunData data;
  data.train = splits[0];
  data.valid = splits[1];
  return data;
}

}  // namespace

SampleNeeds sample_needs(const TrainConfig& train, const BatchSchedule& batches) {
  std::int64_t iterations =
      train.train_iters > 0 ? train.train_iters : batches.iterations_within(train.train_samples);
  SampleNeeds needs;
  needs.train = train.train_samples > 0 ? train.train_samples : batches.samples_after(iterations);
  if (train.eval_interval > 0) {
    std::int64_t batch = batches.at(batches.steps().back().from_samples).running;
    needs.valid = (iterations / train.eval_interval + 1) * train.eval_iters * batch;
  }
  return needs;
}

RunData open_data(const DataConfig& config, std::int64_t vocab_size, std::uint64_t seed,
                  const SampleNeeds& needs) {
  RunData data;
  if (!config.token_batches.empty()) {
    data.replay =
        std::make_shared<TokenBatches>(read_token_batches(config.token_batches, vocab_size));
    return data;
  }
  if (config.has_token_files()) return open_token_files(config, vocab_size, seed, needs);
  if (!config.sft_data.empty()) {
    data.train = open_sft_data(config, DataSplit::kTrain, vocab_size, seed);
    if (needs.valid) data.valid = open_sft_data(config, DataSplit::kValid, vocab_size, seed);
    return data;
  }
  if (config.mock_data) {
    MockConfig mock;
    mock.vocab_size = vocab_size;
    mock.seq_length = config.seq_length;
    mock.seed = seed;
    data.train = std::make_shared<MockDataset>(mock);
    mock.seed = seed + 1;
    if (needs.valid) data.valid = std::make_shared<MockDataset>(mock);
    return data;
  }
  auto corpus = std::make_shared<TextCorpus>(config.text);
  auto open = [&](DataSplit part, const char* what) {
    TextDatasetConfig text;
    text.seq_length = config.seq_length;
    text.split = config.split;
    text.part = part;
    text.seed = seed;
    text.shuffle = part == DataSplit::kTrain;
    auto dataset = std::make_shared<TextDataset>(corpus, text);
    BEV_CHECK(dataset->num_samples() > 0, ErrorKind::kInput, "--text: the ", what,
              " split (--split ", config.split, ") of ", corpus->num_tokens(),
              " bytes is too short for one sample of ", config.seq_length + 1,
              " tokens; give more text or a smaller --seq-length");
    return dataset;
  };
  data.train = open(DataSplit::kTrain, "training");
  if (needs.valid) data.valid = open(DataSplit::kValid, "validation");
  return data;
}

StepBatch load_step(Context& ctx, const Dataset& data, std::int64_t consumed_samples,
                    const BatchSize& size, std::int64_t micro_batch_size) {
  StepBatch step;
  std::int64_t dp = ctx.mesh.shape().dp, length = data.seq_length();
  for (std::int64_t m = 0; m < size.micro_batches; ++m) {
    std::int64_t first = (m * dp + ctx.mesh.at().dp) * micro_batch_size;
    std::vector<TokenSample> samples;
    for (std::int64_t i = 0; i < micro_batch_size; ++i) {
      samples.push_back(data.sample(consumed_samples + first + i));
    }
    step.micro_batches.push_back(make_micro_batch(ctx, samples, first));
  }
  step.samples = size.running;
  step.tokens = size.running * length;
  step.squared_lengths =
      static_cast<double>(size.running) * static_cast<double>(length) * static_cast<double>(length);
  return step;
}

StepBatch replay_step(Context& ctx, const TokenBatches& replay, std::int64_t index,
                      std::int64_t micro_batch_size) {
  StepBatch step;
  std::vector<TokenSample> samples;
  for (const TokenRow& row : replay.batches[static_cast<std::size_t>(index)]) {
    samples.push_back(labelled_sample(row, row));
    auto length = static_cast<double>(row.size());
    step.tokens += static_cast<std::int64_t>(row.size());
    step.squared_lengths += length * length;
  }
  step.samples = static_cast<std::int64_t>(samples.size());
  step.micro_batches = rank_micro_batches(ctx, samples, micro_batch_size);
  return step;
}

}  // namespace bev
