// bench serve: a load test of the inference engine.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "app/commands/commands.h"
#include "app/generation_options.h"
#include "app/model_source.h"
#include "app/options.h"
#include "app/ranks.h"
#include "app/run_config.h"
#include "base/error.h"
#include "base/fields.h"
#include "base/log.h"
#include "base/output.h"
#include "infer/generate.h"
#include "infer/load_metrics.h"
#include "models/families/family.h"
#include "parallel/pipeline/pipeline_layout.h"
#include "plan/flops.h"

namespace bev {

namespace {

constexpr std::int64_t kMostTokens = std::int64_t{1} << 24;

struct BenchServeOptions {
  bool offline = false;
  std::string url;
  ModelSource model;
  std::string preset_name;
  LoadOptions load{.requests = 0, .input_tokens = 0, .output_tokens = 0};
  ServiceLevel level;
  std::int64_t warmup = -1;  // -1: as many as run at a time, where there are CUDA graphs
  bool trace_idle = true;
  bool json = true;  // always
  EngineFlags engine;
  RunConfig run;

  void fields(FieldList& list);
  std::vector<std::string> problems() const;

 private:
  void load_fields(FieldList& list);
};

void BenchServeOptions::load_fields(FieldList& list) {
  list.add("requests", load.requests, "requests of the load").min(0).limit(kMostTokens);
  list.add("input-len", load.input_tokens, "tokens of each prompt, which are random")
      .min(0)
      .limit(kMostTokens);
  list.add("output-len", load.output_tokens, "new tokens of each request; none ends earlier")
      .min(0)
      .limit(kMostTokens);
  list.add("rate", load.rate, "requests that arrive per second, as a Poisson process; 0: at once")
      .min(0);
  list.add("concurrency", load.concurrency,
           "requests in flight: the next one arrives when one is finished; 0: all")
      .min(0)
      .limit(kMostTokens);
  list.add("shared-prefix", load.shared_prefix_tokens, "tokens with which all prompts begin")
      .min(0)
      .limit(kMostTokens);
  list.add("slo-ttft-ms", level.ttft_ms,
           "only requests with a first token within this time count for goodput_rps; 0: all")
      .min(0);
  list.add("slo-itl-ms", level.itl_ms,
           "the same for the mean time between the tokens of a request; 0: all")
      .min(0);
  list.add("warmup", warmup,
           "small requests before the load, so that CUDA graphs exist; -1: as many as run at a "
           "time on a GPU, one on the CPU")
      .min(-1)
      .limit(kMostTokens);
  list.add("trace-idle", trace_idle,
           "after the load, trace some steps for device_idle_share; one GPU only");
}

void BenchServeOptions::fields(FieldList& list) {
  list.section("bench serve");
  list.add("offline", offline, "load an engine in this process");
  list.add("url", url, "load a server; there is none yet: give --offline");
  model.fields(list);
  list.add("preset", preset_name, "known model with random weights instead");
  load_fields(list);
  add_sampling_fields(list, load.sampling);
  list.add("json", json, "results are one JSON line in any case");
  engine.fields(list);
  run.parallel.fields(list);
  run.precision.fields(list);
  run.runtime.fields(list);
}

std::vector<std::string> BenchServeOptions::problems() const {
  std::vector<std::string> out;
  if (!url.empty()) {
    out.push_back("--url: servers are not there yet; give --offline and a model instead");
  } else if (!offline) {
    out.push_back("--offline: is missing; the load runs in this process");
  }
  bool folder = !model.hf_model.empty() || !model.load.empty();
  if (preset_name.empty() && !folder) {
    out.push_back(
        "--hf-model: is missing; give the folder of the model, a run by --load, or "
        "random weights by --preset");
  } else if (preset_name.empty()) {
    for (const std::string& problem : model.problems()) out.push_back(problem);
  } else if (folder) {
    out.push_back("--preset: excludes --hf-model and --load; keep one");
  }
  auto need_count = [&](const char* flag, std::int64_t count) {
    if (count < 1) out.push_back(concat(flag, ": is missing; give a number above 0"));
  };
  need_count("--requests", load.requests);
  need_count("--input-len", load.input_tokens);
  need_count("--output-len", load.output_tokens);
  if (load.rate > 0 && load.concurrency > 0) {
    out.push_back("--rate: excludes --concurrency; keep one");
  }
  if (load.shared_prefix_tokens > load.input_tokens && load.input_tokens > 0) {
    out.push_back(concat("--shared-prefix: ", load.shared_prefix_tokens, " is above --input-len ",
                         load.input_tokens));
  }
  for (const std::string& problem : engine.problems()) out.push_back(problem);
  return out;
}

using Json = nlohmann::ordered_json;

Json percentiles_json(const std::optional<Percentiles>& values) {
  Json out;
  for (std::size_t i = 0; i < kPercentiles.size(); ++i) {
    std::string name = concat("p", static_cast<std::int64_t>(kPercentiles[i]));
    out[name] = values ? Json((*values)[i]) : Json();
  }
  return out;
}

Json number(const std::optional<double>& value) { return value ? Json(*value) : Json(); }

Json result_json(const LoadMetrics& metrics, const LoadResult& result,
                 const std::optional<DeviceIdle>& idle) {
  Json line;
  line["completed"] = metrics.completed;
  line["failed"] = metrics.failed;
  line["duration_s"] = metrics.duration_s;
  line["input_tokens"] = metrics.input_tokens;
  line["output_tokens"] = metrics.output_tokens;
  line["output_tok_s"] = metrics.output_tok_s;
  line["ttft_ms"] = percentiles_json(metrics.ttft_ms);
  line["itl_ms"] = percentiles_json(metrics.itl_ms);
  line["tpot_ms"] = percentiles_json(metrics.tpot_ms);
  line["e2e_ms"] = percentiles_json(metrics.e2e_ms);
  line["goodput_rps"] = metrics.goodput_rps;
  line["device_idle_share"] = idle ? Json(idle->share) : Json();
  line["step_gap_share"] = idle ? Json(idle->between_steps) : Json();
  line["decode_tok_s"] = number(metrics.decode_tok_s);
  line["full_batch_tok_s"] = number(metrics.full_batch_tok_s);
  line["cached_tokens"] = metrics.cached_tokens;
  line["preemptions"] = result.statistics.preemptions;
  line["steps"] = result.statistics.steps;
  return line;
}

// An engine for as many requests as run at a time.
InferenceOptions engine_limits(const BenchServeOptions& wanted) {
  std::int64_t width = wanted.load.width(wanted.engine.max_seqs);
  std::vector<Request> running(static_cast<std::size_t>(width),
                               load_request(wanted.load, wanted.run.model.vocab_size, 0));
  return options_for(running, wanted.engine.options());
}

void bench_rank(const RankStart& start, const BenchServeOptions& wanted,
                const SourceModel* source) {
  EngineOptions options = engine_options(wanted.run, start.threads, start.local_rank);
  options.gradients = false;
  Rank rank(start.world, start.kernels, options);
  RankModel model(rank, options);
  InferenceEngine engine(model, engine_limits(wanted));
  if (source != nullptr) source->load_weights(model);
  const bool first = start.world.rank() == 0;
  std::int64_t warmup = wanted.warmup;
  if (warmup < 0) warmup = rank.runs_ahead() ? wanted.load.width(wanted.engine.max_seqs) : 1;
  if (first && warmup > 0) log_info(concat("warming up with ", warmup, " requests"));
  warm_up_load(engine, wanted.load, warmup);
  if (first) log_info(concat("running ", wanted.load.requests, " requests"));
  LoadResult result = run_load(engine, wanted.load);
  std::optional<DeviceIdle> idle;
  if (wanted.trace_idle && start.world.size() == 1) idle = trace_device_idle(engine, wanted.load);
  if (!first) return;
  LoadMetrics metrics = load_metrics(wanted.load, result, wanted.level);
  write_stdout(result_json(metrics, result, idle).dump() + "\n");
}

int run_bench_serve(BenchServeOptions& wanted, const CommandInput& input) {
  RunConfig& run = wanted.run;
  Options& options = input.options;
  options.add_problems(wanted.problems());
  options.throw_problems();
  std::optional<SourceModel> source;
  if (wanted.preset_name.empty()) source.emplace(wanted.model);
  run.model = source ? source->config() : preset(wanted.preset_name);
  options.add_problems(run.parallel.resolve());
  options.throw_problems();
  run.parallel = inference_layout(run.parallel);
  options.add_problems(run.resolve_layout());
  options.throw_problems();
  wanted.load.sampling.seed = static_cast<std::uint64_t>(run.runtime.seed);
  check_request(run.model, load_request(wanted.load, run.model.vocab_size, 0), "a request");
  // A step waits for the weights more than for the arithmetic.
  constexpr double kReadingFlops = 8;
  RuntimeConfig runtime = paying_threads(
      run, input.launch,
      kReadingFlops * model_flops(run.model, wanted.load.width(wanted.engine.max_seqs), 1));
  run_ranks(input.launch, run.parallel, runtime, [&](const RankStart& start) {
    bench_rank(start, wanted, source ? &*source : nullptr);
  });
  return kExitOk;
}

}  // namespace

const Command kBenchServeCommand = {
    .name = "bench serve",
    .summary = "speed and latency of the inference engine under a load of requests",
    .examples =
        "bevatron bench serve --offline --hf-model DIR --requests 64 --input-len 960 "
        "--output-len 128 --bf16\n"
        "bevatron bench serve --offline --preset llama3-8b --requests 1000 --input-len 1000 "
        "--output-len 1000 --rate 8 --slo-ttft-ms 500 --bf16\n"
        "bevatron bench serve --offline --load RUN --requests 100 --input-len 4160 --output-len 64 "
        "--shared-prefix 4096 --concurrency 1",
    .call = call_of<BenchServeOptions, run_bench_serve>};

}  // namespace bev
