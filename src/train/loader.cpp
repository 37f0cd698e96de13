#include "train/loader.h"

#include <utility>

#include "base/error.h"
#include "data/mock_dataset.h"
#include "data/token_file.h"
#include "train/sft_data.h"
#include "train/token_files.h"

namespace bev {

namespace {

RunData open_token_files(const DataConfig& config, std::int64_t vocab_size, std::uint64_t seed,
                         const SampleNeeds& needs, const SampleOrderSpec& order) {
  GptSplits splits = open_gpt_data(gpt_sources(config), {needs.train, needs.valid, std::nullopt},
                                   gpt_data_config(config, vocab_size, seed));
  auto check = [&](const GptBlend* data, std::int64_t wanted, const char* what) {
    std::int64_t there = data ? data->num_samples() : 0;
    bool again = order.kind == OrderKind::kCyclic && there > 0;
    BEV_CHECK(there >= wanted || again, ErrorKind::kInput, "the ", what, " blend has ", there,
              " samples in one epoch and the run takes ", wanted,
              "; to go over the data again, give weights or --dataloader-type cyclic");
  };
  check(splits[0].get(), needs.train, "training");
  if (needs.valid) check(splits[1].get(), *needs.valid, "validation");
  RunData data;
  data.train = splits[0];
  data.valid = splits[1];
  return data;
}

RunData open_mock_data(const DataConfig& config, std::int64_t vocab_size, std::uint64_t seed,
                       const SampleNeeds& needs) {
  MockConfig mock;
  mock.vocab_size = vocab_size;
  mock.seq_length = config.seq_length;
  mock.seed = seed;
  RunData data;
  data.train = std::make_shared<MockDataset>(mock);
  mock.seed = seed + 1;
  if (needs.valid) data.valid = std::make_shared<MockDataset>(mock);
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
                  const SampleNeeds& needs, const SampleOrderSpec& order) {
  RunData data;
  if (config.has_token_files()) {
    data = open_token_files(config, vocab_size, seed, needs, order);
  } else if (!config.sft_data.empty()) {
    data.train = open_sft_data(config, DataSplit::kTrain, vocab_size, seed);
    if (needs.valid) data.valid = open_sft_data(config, DataSplit::kValid, vocab_size, seed);
  } else {
    BEV_CHECK(config.mock_data, ErrorKind::kInternal, "there is no data to open");
    data = open_mock_data(config, vocab_size, seed, needs);
  }
  auto order_of = [&](const Dataset& dataset) {
    SampleOrderSpec spec = order;
    spec.num_samples = dataset.num_samples();
    return std::make_shared<SampleOrder>(spec);
  };
  data.train_order = order_of(*data.train);
  if (data.valid) data.valid_order = order_of(*data.valid);
  return data;
}

Loader::Loader(const Context& ctx, std::shared_ptr<const Dataset> data,
               std::shared_ptr<const SampleOrder> order, const BatchSchedule& batches,
               std::int64_t consumed_samples, const ReadAhead& ahead, const MtpSpec& mtp)
    : batches_(batches),
      seq_length_(data->seq_length()),
      consumed_samples_(consumed_samples),
      mtp_(mtp),
      reader_({std::move(data), std::move(order), batches, ctx.mesh.at().dp, ctx.mesh.shape().dp},
              consumed_samples, ahead) {}

StepBatch Loader::next(Context& ctx) {
  BatchSize size = batches_.at(consumed_samples_);
  StepBatch step;
  for (std::int64_t m = 0; m < size.micro_batches; ++m) {
    std::int64_t first = (m * ctx.mesh.shape().dp + ctx.mesh.at().dp) * batches_.micro_batch_size();
    step.micro_batches.push_back(make_micro_batch(ctx, reader_.next(), first, mtp_));
  }
  auto length = static_cast<double>(seq_length_);
  step.samples = size.running;
  step.tokens = size.running * seq_length_;
  step.squared_lengths = static_cast<double>(size.running) * length * length;
  consumed_samples_ += size.running;
  return step;
}

RunData open_replay_data(const DataConfig& config, const BatchFormat& format) {
  RunData data;
  data.replay = std::make_shared<std::vector<GlobalBatch>>(
      config.batches.empty() ? read_token_batches(config.token_batches, format.vocab_size)
                             : read_batches(config.batches, format));
  return data;
}

StepBatch replay_step(Context& ctx, const GlobalBatch& batch, std::int64_t micro_batch_size,
                      const MtpSpec& mtp) {
  StepBatch step;
  for (const TokenSample& sample : batch.samples) {
    auto length = static_cast<double>(sample.tokens.size());
    step.tokens += std::ssize(sample.tokens);
    step.squared_lengths += length * length;
  }
  step.samples = std::ssize(batch.samples);
  step.micro_batches = rank_micro_batches(ctx, batch.samples, micro_batch_size, mtp);
  return step;
}

}  // namespace bev
