#include "app/merge_adapter.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "app/model_source.h"
#include "app/ranks.h"
#include "backend/cpu/cpu_kernels.h"
#include "base/error.h"
#include "base/host_memory.h"
#include "base/scoped_value.h"
#include "base/thread_pool.h"
#include "bridge/adapter_config.h"
#include "bridge/adapter_files.h"
#include "comm/world.h"
#include "data/batch.h"
#include "posttrain/merging.h"

namespace bev {

namespace {

// Tokens drawn from the whole vocabulary.
std::vector<TokenSample> probe_samples(const ModelConfig& model) {
  constexpr std::int64_t kRows = 2, kLength = 32;
  std::int64_t length = std::min(kLength, model.max_position_embeddings);
  std::mt19937_64 draw(7);
  std::vector<TokenSample> samples;
  for (std::int64_t row = 0; row < kRows; ++row) {
    std::vector<std::int32_t> tokens;
    for (std::int64_t i = 0; i < length; ++i) {
      tokens.push_back(static_cast<std::int32_t>(
          draw() % static_cast<std::uint64_t>(std::max<std::int64_t>(model.vocab_size, 1))));
    }
    samples.push_back(labelled_sample(tokens, tokens));
  }
  return samples;
}

class LogitsSink final : public OutputSink {
 public:
  explicit LogitsSink(RankModel& model) : model_(model) {}
  void on_outputs(std::int64_t, std::span<const Var> outputs) override {
    const Var& final = outputs[0];
    Tensor all = stage_logits(model_.ctx(), model_.head_stage(), final, final.shape()[0]);
    if (all.dtype() == Dtype::kF64) {
      logits = model_.ctx().download<double>(all);
    } else {
      std::vector<float> narrow = model_.ctx().download<float>(all);
      logits.assign(narrow.begin(), narrow.end());
    }
  }
  std::vector<double> logits;

 private:
  RankModel& model_;
};

std::vector<double> logits_of(RankModel& model, const std::vector<TokenSample>& samples) {
  LogitsSink sink(model);
  std::vector<MicroBatch> batches = rank_micro_batches(model.ctx(), samples, std::ssize(samples),
                                                       mtp_spec(model.options().model));
  model.forward_outputs(batches, sink);
  return std::move(sink.logits);
}

// Puts the merged weights in the place of those that they replace.
void load_merged(RankModel& model, const WeightMap& map, MergedWeights& merged) {
  for (const Param* param : model.store().params()) {
    if (!merged.changes(param->name)) continue;
    const ParamMapping& mapping = map.find(param->name);
    KeptPart part(model, *param);
    for (const KeptPart::Run& run : part.runs()) {
      merged.read(mapping, run.elements, part.dtype(), run.out);
    }
    part.store();
  }
}

// f64 where memory allows, so that rounding does not count.
Dtype probe_dtype(const ModelConfig& model) {
  double bytes = 8.0 * static_cast<double>(count_parameters(model));
  return bytes < 0.9 * free_host_memory() ? Dtype::kF64 : Dtype::kF32;
}

double largest_difference(const SourceModel& source, const WeightMap& map, MergedWeights& merged) {
  EngineOptions options;
  options.model = source.config();
  options.dtype = probe_dtype(options.model);
  options.gradients = false;
  options.threads = machine_threads();
  double largest = 0;
  run_thread_ranks(1, {}, [&](World& world) {
    Rank rank(world, cpu_kernels(), options);
    RankModel model(rank, options);
    source.load_weights(model);
    const std::vector<TokenSample> samples = probe_samples(options.model);
    const std::vector<double> adapted = logits_of(model, samples);
    load_merged(model, map, merged);
    ScopedValue<bool> without(model.ctx().adapters, false);
    const std::vector<double> plain = logits_of(model, samples);
    for (std::size_t i = 0; i < plain.size(); ++i) {
      double difference = std::abs(plain[i] - adapted[i]);
      // A NaN on either side counts as different.
      if (!(difference <= largest)) largest = difference;
      if (std::isnan(difference)) break;
    }
  });
  return largest;
}

}  // namespace

MergeOutcome merge_adapter(const std::string& base, const std::string& adapter,
                           const ExportTarget& target) {
  ModelSource wanted;
  wanted.hf_model = base;
  wanted.adapter = {adapter};
  SourceModel source(wanted);
  BEV_CHECK(
      source.config().lora.init != LoraInit::kPissa, ErrorKind::kInput, "--adapter ", adapter,
      ": has init_lora_weights \"pissa\" and belongs to changed weights; save it with peft's ",
      "path_initial_model_for_weight_conversion, or train --export-adapter");
  const ModelConfig plain = without_adapters(source.config());
  WeightFiles files(base), factors(adapter, kAdapterWeightsName);
  WeightMap map(plain), factor_map = adapter_map(source.config());
  map.check(files);
  factor_map.check(factors);
  WeightFilesSource weights(files);
  MergedWeights merged(source.config(), weights, [&](const Param& param, std::span<double> out) {
    StoredParam(factor_map.find(param.name), factors)
        .read({0, std::ssize(out)}, Dtype::kF64, out.data());
  });
  MergeOutcome outcome{merged.modules(), largest_difference(source, map, merged)};
  if (!outcome.same()) return outcome;
  Dtype dtype = target.dtype.value_or(weights.dtype(map.params().front(), 0));
  std::vector<ExportFile> companions = companion_files(base);
  companions.push_back({"config.json", export_config(plain, dtype, base)});
  export_hf(map, merged, target, companions);
  return outcome;
}

}  // namespace bev
