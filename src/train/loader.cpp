#include "train/loader.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "data/gpt/epoch_samples.h"
#include "data/mock_dataset.h"
#include "data/token_file.h"
#include "train/label_data.h"
#include "train/masked_data.h"
#include "train/preference_data.h"
#include "train/sft_data.h"
#include "train/token_files.h"

namespace bev {

namespace {

constexpr auto kTrain = static_cast<std::size_t>(DataSplit::kTrain);
constexpr auto kValid = static_cast<std::size_t>(DataSplit::kValid);
constexpr auto kTest = static_cast<std::size_t>(DataSplit::kTest);

// What is needed to open the data of a run.
struct DataRequest {
  const DataConfig& config;
  std::int64_t vocab_size;
  std::uint64_t seed;
  const SampleNeeds& needs;
  const SampleOrderSpec& order;
};

std::shared_ptr<const SampleOrder> order_of(const Dataset& data, SampleOrderSpec order) {
  order.num_samples = data.num_samples();
  return std::make_shared<SampleOrder>(order);
}

// Names of the sets of --multiple-validation-sets, which are read from these files.
std::vector<std::string> set_names(const std::vector<std::string>& files, const EvalConfig& eval) {
  const std::vector<std::string>& given = eval.validation_set_names;
  BEV_CHECK(given.empty() || given.size() == files.size(), ErrorKind::kConfig,
            "--validation-set-names: ", given.size(), " names for ", files.size(),
            " validation sets; give one for each");
  if (!given.empty()) return given;
  std::set<std::string> names;
  std::vector<std::string> out;
  for (const std::string& file : files) {
    out.push_back(file.substr(file.find_last_of('/') + 1));
    names.insert(out.back());
  }
  return names.size() == files.size() ? out : files;
}

EvalSet make_eval_set(std::string name, std::shared_ptr<const Dataset> data,
                      const DataRequest& request) {
  SampleOrderSpec order = request.order;
  order.micro_batch_size = request.needs.batch.micro;
  // A full evaluation reads every sample once.
  if (request.needs.eval.full_validation) order.kind = OrderKind::kSingle;
  EvalSet set{std::move(name), data, order_of(*data, order), request.needs.evaluation};
  if (request.needs.eval.full_validation) set.samples = data->num_samples();
  return set;
}

void check_samples(const GptBlend* data, std::int64_t wanted, const SampleOrderSpec& order,
                   const char* what) {
  std::int64_t there = data ? data->num_samples() : 0;
  bool again = order.kind == OrderKind::kCyclic && there > 0;
  BEV_CHECK(there >= wanted || again, ErrorKind::kInput, "the ", what, " blend has ", there,
            " samples in one epoch and the run takes ", wanted,
            "; to go over the data again, give weights or --dataloader-type cyclic");
}

std::shared_ptr<const GptBlend> open_split(const GptSources& sources, std::size_t split,
                                           std::int64_t samples, const DataRequest& request) {
  SplitSizes sizes;
  sizes[split] = samples;
  GptDataConfig config = gpt_data_config(request.config, request.vocab_size, request.seed);
  return open_gpt_data(sources, sizes, config)[split];
}

// Without weights a blend ends after one pass; in a run of several it is blended by size.
std::shared_ptr<const GptBlend> open_training(GptSources sources, const DataRequest& request,
                                              double& epoch) {
  std::int64_t wanted = *request.needs.train;
  EpochSamples pass = epoch_samples(sources, DataSplit::kTrain, request.config.seq_length);
  epoch = pass.samples;
  if (request.needs.by_epochs && !pass.repeats && wanted > pass.after(1)) {
    Blend& blend = sources.shared ? *sources.shared : *sources.own[kTrain];
    blend.weights.assign(pass.members.begin(), pass.members.end());
  }
  auto data = open_split(sources, kTrain, wanted, request);
  check_samples(data.get(), wanted, request.order, "training");
  return data;
}

// The sets of --multiple-validation-sets with their names, or one with the empty name.
std::vector<std::pair<std::string, GptSources>> validation_sources(const GptSources& sources,
                                                                   const EvalConfig& eval) {
  if (!eval.multiple_validation_sets) return {{"", sources}};
  const std::optional<Blend>& blend = sources.own[kValid];
  BEV_CHECK(blend, ErrorKind::kConfig,
            "--multiple-validation-sets: needs files for validation only; give "
            "--valid-data-path or \"valid\" in --per-split-data-args-path");
  BEV_CHECK(blend->weights.empty(), ErrorKind::kConfig,
            "--multiple-validation-sets: each set is evaluated by itself, so weights say nothing; "
            "give --valid-data-path the prefixes only");
  std::vector<std::string> names = set_names(blend->prefixes, eval);
  std::vector<std::pair<std::string, GptSources>> out;
  for (std::size_t i = 0; i < names.size(); ++i) {
    out.emplace_back(names[i], sources);
    out.back().second.own[kValid] = Blend{{blend->prefixes[i]}, {}};
  }
  return out;
}

// A whole split is read without weights, which may repeat samples or leave some out.
GptSources without_weights(GptSources sources) {
  if (sources.shared) sources.shared->weights.clear();
  for (std::optional<Blend>& blend : sources.own) {
    if (blend) blend->weights.clear();
  }
  return sources;
}

void open_validation(const GptSources& sources, const DataRequest& request, RunData& data) {
  const SampleNeeds& needs = request.needs;
  bool full = needs.eval.full_validation;
  for (auto& [name, set] : validation_sources(sources, needs.eval)) {
    auto blend = full ? open_split(without_weights(set), kValid, kOneEpoch, request)
                      : open_split(set, kValid, *needs.valid, request);
    if (!full) check_samples(blend.get(), *needs.valid, request.order, "validation");
    BEV_CHECK(blend && blend->num_samples() > 0, ErrorKind::kInput, "the validation data ", name,
              name.empty() ? "" : " ", "is too short for one sample of ", request.config.seq_length,
              " tokens; change --split, the data or --seq-length");
    data.valid.push_back(make_eval_set(name, blend, request));
  }
}

bool has_test_share(const DataConfig& config) {
  constexpr std::int64_t kMuch = std::int64_t{1} << 40;
  std::array<std::int64_t, 4> bounds = split_bounds(config.split_weights(), kMuch);
  return bounds[kTest] < bounds[kTest + 1];
}

// A share of common files may be too small for a test, which is no error then; own files of the
// test are always opened, so that a wrong path is found at the start.
void open_test(const GptSources& sources, const DataRequest& request, RunData& data) {
  const SampleNeeds& needs = request.needs;
  bool own = sources.own[kTest].has_value();
  if (!own && (!needs.test || !sources.shared)) return;
  std::shared_ptr<const GptBlend> blend;
  try {
    blend = needs.eval.full_validation
                ? open_split(without_weights(sources), kTest, kOneEpoch, request)
                : open_split(sources, kTest, needs.test.value_or(0), request);
  } catch (const Error&) {
    if (own) throw;
  }
  bool enough = blend && blend->num_samples() > 0;
  BEV_CHECK(enough || !own || !needs.test, ErrorKind::kInput,
            "--test-data-path: is too short for one sample of ", request.config.seq_length,
            " tokens");
  // With the shares of the default, few tests are missed.
  if (!enough && needs.test && !request.config.split.empty() && has_test_share(request.config)) {
    log_warning(concat("--split ", request.config.split,
                       ": the share of the test is too small for ",
                       "one sample, so there is no test"));
  }
  if (!enough || !needs.test) return;
  data.test.push_back(make_eval_set("", blend, request));
  data.test[0].samples = std::min(data.test[0].samples, blend->num_samples());
}

RunData open_token_files(const DataRequest& request) {
  GptSources sources = gpt_sources(request.config);
  RunData data;
  if (request.needs.train) data.train = open_training(sources, request, data.epoch_samples);
  if (request.needs.valid) open_validation(sources, request, data);
  open_test(sources, request, data);
  return data;
}

// Masked samples of sentences: as many of each split as the run takes.
RunData open_masked_sentences(const DataRequest& request) {
  const SampleNeeds& needs = request.needs;
  const bool full = needs.eval.full_validation;
  BEV_CHECK(!needs.eval.multiple_validation_sets, ErrorKind::kConfig,
            "--multiple-validation-sets: is not for --objective mlm; leave one away");
  SplitSizes sizes = {needs.train, {}, {}};
  if (needs.valid) sizes[kValid] = full ? kOneEpoch : *needs.valid;
  if (needs.test) sizes[kTest] = full ? kOneEpoch : *needs.test;
  auto splits = open_masked_samples(request.config, sizes, request.seed);
  RunData data;
  data.train = splits[kTrain];
  if (needs.valid && splits[kValid]) {
    data.valid = {make_eval_set("", splits[kValid], request)};
  }
  if (needs.test && splits[kTest]) data.test = {make_eval_set("", splits[kTest], request)};
  return data;
}

std::shared_ptr<const Dataset> open_rows(const DataConfig& config, DataSplit split,
                                         std::int64_t vocab_size, std::uint64_t seed) {
  if (config.preferences.text_task()) return open_label_data(config, split, vocab_size, seed);
  if (!config.preferences.any()) return open_sft_data(config, split, vocab_size, seed);
  return open_preference_data(config, split, vocab_size, seed);
}

void open_validation_rows(const DataRequest& request, RunData& data) {
  const EvalConfig& eval = request.needs.eval;
  DataConfig config = request.config;
  const bool own = config.preferences.any() || config.preferences.text_task();
  std::vector<std::string>& valid = own ? config.preferences.valid_data : config.sft_valid_data;
  const std::vector<std::string> files = valid;
  std::vector<std::string> names =
      eval.multiple_validation_sets ? set_names(files, eval) : std::vector<std::string>{""};
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (eval.multiple_validation_sets) valid = {files[i]};
    data.valid.push_back(make_eval_set(
        names[i], open_rows(config, DataSplit::kValid, request.vocab_size, request.seed), request));
  }
}

// Conversations, or preferences.
RunData open_conversations(const DataRequest& request) {
  RunData data;
  if (request.needs.train) {
    data.train = request.needs.conversations;
    if (!data.train) {
      data.train = open_rows(request.config, DataSplit::kTrain, request.vocab_size, request.seed);
    }
    data.epoch_samples = static_cast<double>(data.train->num_samples());
  }
  if (request.needs.valid) open_validation_rows(request, data);
  auto lacks_reference = [](const std::shared_ptr<const Dataset>& set) {
    auto preferences = std::dynamic_pointer_cast<const PreferenceDataset>(set);
    return preferences && !preferences->has_reference();
  };
  data.needs_reference =
      lacks_reference(data.train) || std::ranges::any_of(data.valid, [&](const EvalSet& set) {
        return lacks_reference(set.data);
      });
  return data;
}

RunData open_mock_data(const DataRequest& request) {
  MockConfig mock;
  mock.vocab_size = request.vocab_size;
  mock.seq_length = request.config.seq_length;
  auto open = [&](std::uint64_t split) {
    mock.seed = request.seed + split;
    return std::make_shared<MockDataset>(mock);
  };
  RunData data;
  if (request.needs.train) data.train = open(kTrain);
  if (request.needs.valid) data.valid = {make_eval_set("", open(kValid), request)};
  if (request.needs.test) data.test = {make_eval_set("", open(kTest), request)};
  return data;
}

}  // namespace

SampleNeeds sample_needs(const TrainConfig& train, const BatchSchedule& batches,
                         const EvalBatch& batch) {
  std::int64_t iterations =
      train.train_iters > 0 ? train.train_iters : batches.iterations_within(train.train_samples);
  SampleNeeds needs;
  needs.eval = train.eval;
  needs.batch = batch;
  needs.by_epochs = train.epochs > 0;
  needs.evaluation = train.eval_iters * batch.global;
  if (!train.eval.skip_train) {
    needs.train = train.train_samples > 0 ? train.train_samples : batches.samples_after(iterations);
  }
  if (train.eval_interval > 0) {
    std::int64_t left_out = train.eval.start_eval_at_iter / train.eval_interval;
    std::int64_t times = std::max<std::int64_t>(iterations / train.eval_interval - left_out, 0) + 1;
    needs.valid = times * needs.evaluation;
  }
  if (train.eval_iters > 0 || train.eval.full_validation) needs.test = needs.evaluation;
  return needs;
}

RunData open_data(const DataConfig& config, std::int64_t vocab_size, std::uint64_t seed,
                  const SampleNeeds& needs, const SampleOrderSpec& order) {
  DataRequest request{config, vocab_size, seed, needs, order};
  RunData data;
  if (config.preferences.masks()) {
    data = open_masked_sentences(request);
  } else if (config.has_token_files()) {
    data = open_token_files(request);
  } else if (!config.sft_data.empty() || config.preferences.any() ||
             config.preferences.text_task()) {
    data = open_conversations(request);
  } else {
    BEV_CHECK(config.mock_data, ErrorKind::kInternal, "there is no data to open");
    data = open_mock_data(request);
  }
  if (data.train) data.train_order = order_of(*data.train, order);
  return data;
}

DataLength samples_of_epochs(const DataConfig& config, double epochs, std::int64_t vocab_size,
                             std::uint64_t seed) {
  if (!config.has_token_files()) {
    auto data = open_rows(config, DataSplit::kTrain, vocab_size, seed);
    double samples = epochs * static_cast<double>(data->num_samples());
    return {static_cast<std::int64_t>(std::floor(samples + 1e-9)), false, data};
  }
  EpochSamples pass = epoch_samples(gpt_sources(config), DataSplit::kTrain, config.seq_length);
  return {pass.after(epochs), !pass.repeats && epochs <= 1, nullptr};
}

std::int64_t batch_ranks(const MeshShape& mesh) { return mesh.shared_tokens > 0 ? 1 : mesh.dp; }

namespace {
SampleSource source_of(const Context& ctx, std::shared_ptr<const Dataset> data,
                       std::shared_ptr<const SampleOrder> order, const BatchSchedule& batches) {
  const std::int64_t ranks = batch_ranks(ctx.mesh.shape());
  return {std::move(data), std::move(order), batches, ranks > 1 ? ctx.mesh.at().dp : 0, ranks};
}
}  // namespace

Loader::Loader(const Context& ctx, std::shared_ptr<const Dataset> data,
               std::shared_ptr<const SampleOrder> order, const BatchSchedule& batches,
               std::int64_t consumed_samples, const ReadAhead& ahead, const MtpSpec& mtp)
    : batches_(batches),
      seq_length_(data->seq_length()),
      consumed_samples_(consumed_samples),
      mtp_(mtp),
      reader_(source_of(ctx, std::move(data), std::move(order), batches), consumed_samples, ahead) {
}

namespace {
void add_lengths(std::span<const TokenSample> samples, std::array<double, 2>& sums) {
  for (const TokenSample& sample : samples) {
    for (std::int32_t length : sample.documents) {
      sums[0] += length;
      sums[1] += static_cast<double>(length) * length;
    }
  }
}
}  // namespace

StepBatch Loader::next_shared(Context& ctx) {
  const BatchSize size = batches_.at(consumed_samples_);
  std::vector<TokenSample> all;
  for (std::int64_t m = 0; m < size.micro_batches; ++m)
    std::ranges::move(reader_.next(), std::back_inserter(all));
  std::array<double, 2> lengths{};
  add_lengths(all, lengths);
  StepBatch step;
  step.micro_batches = rank_micro_batches(ctx, all, batches_.micro_batch_size(), mtp_);
  step.samples = size.running;
  step.tokens = std::llround(lengths[0]);
  step.squared_lengths = lengths[1];
  consumed_samples_ += size.running;
  return step;
}

StepBatch Loader::next(Context& ctx) {
  if (ctx.mesh.shape().shared_tokens > 0) return next_shared(ctx);
  BatchSize size = batches_.at(consumed_samples_);
  StepBatch step;
  std::array<double, 2> lengths{};  // of this rank's samples: their sum, and that of squares
  for (std::int64_t m = 0; m < size.micro_batches; ++m) {
    std::int64_t first = (m * ctx.mesh.shape().dp + ctx.mesh.at().dp) * batches_.micro_batch_size();
    std::vector<TokenSample> samples = reader_.next();
    if (seq_length_ == 0) add_lengths(samples, lengths);
    step.micro_batches.push_back(make_micro_batch(ctx, samples, first, mtp_));
  }
  step.samples = size.running;
  consumed_samples_ += size.running;
  if (seq_length_ == 0) {
    View sums{lengths.data(), Dtype::kF64, {2}};
    ctx.mesh.dp().host().all_reduce(sums, Reduction::kSum, "lengths of the batch").wait();
    step.tokens = std::llround(lengths[0]);
    step.squared_lengths = lengths[1];
    return step;
  }
  auto length = static_cast<double>(seq_length_);
  step.tokens = size.running * seq_length_;
  step.squared_lengths = static_cast<double>(size.running) * length * length;
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
