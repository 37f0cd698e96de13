// bench serve: a load test of the inference engine, in this process or behind a server.
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
#include "base/stop_signal.h"
#include "infer/generate.h"
#include "infer/load_metrics.h"
#include "models/families/family.h"
#include "parallel/pipeline/pipeline_layout.h"
#include "plan/flops.h"
#include "serve/http_load.h"

namespace bev {

namespace {

constexpr std::int64_t kMostTokens = std::int64_t{1} << 24;

struct BenchServeOptions {
  bool offline = false;
  HttpLoadOptions http;
  ModelSource model;
  std::string preset_name;
  LoadOptions load{.requests = 0, .input_tokens = 0, .output_tokens = 0};
  ServiceLevel level;
  // -1: as many as run at a time, where there are CUDA graphs in this process; else one
  std::int64_t warmup = -1;
  bool trace_idle = true;
  bool insecure = false;
  bool json = true;  // always
  EngineFlags engine;
  RunConfig run;

  void fields(FieldList& list);
  // Flags and rules of one of the two ways; the first two are those of both.
  void load_fields(FieldList& list);
  std::vector<std::string> problems() const;
  void http_fields(FieldList& list);
  std::vector<std::string> http_problems() const;
  void offline_fields(FieldList& list);
  std::vector<std::string> offline_problems() const;
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
           "time on a GPU of this process, else one")
      .min(-1)
      .limit(kMostTokens);
  add_sampling_fields(list, load.sampling);
  list.add("json", json, "results are one JSON line in any case");
}

void BenchServeOptions::http_fields(FieldList& list) {
  list.add("url", http.url, "load a server with OpenAI's API: http://HOST:PORT, or https");
  list.add("api-key", http.api_key, "with --url: key that is sent");
  list.add("served-model-name", http.model, "with --url: the model")
      .defaults_to("the first that the server lists");
  list.add("vocab-size", http.vocab_size, "with --url: random tokens are below it")
      .min(0)
      .limit(std::int64_t{1} << 31)
      .defaults_to("what the server says, as bevatron does");
  list.add("stream", http.stream,
           "with --url: answers are streams of events; without, only whole answers have times");
  list.add("insecure", insecure, "with --url https: any certificate will do");
  list.add("timeout", http.timeout_s,
           "with --url: seconds after which a request that hears nothing has failed")
      .above(0);
}

void BenchServeOptions::offline_fields(FieldList& list) {
  list.add("offline", offline, "load an engine in this process");
  model.fields(list);
  list.add("preset", preset_name, "known model with random weights instead");
  list.add("trace-idle", trace_idle,
           "after the load, trace some steps for device_idle_share; one GPU only");
  engine.fields(list);
  run.parallel.fields(list);
  run.precision.fields(list);
  run.runtime.fields(list);
}

void BenchServeOptions::fields(FieldList& list) {
  list.section("bench serve");
  http_fields(list);
  load_fields(list);
  offline_fields(list);
}

std::vector<std::string> BenchServeOptions::problems() const {
  std::vector<std::string> out;
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
  return out;
}

std::vector<std::string> BenchServeOptions::http_problems() const {
  if (!http.stream && (level.ttft_ms > 0 || level.itl_ms > 0)) {
    return {"--slo-ttft-ms and --slo-itl-ms: need the times of tokens; leave out --no-stream"};
  }
  return {};
}

std::vector<std::string> BenchServeOptions::offline_problems() const {
  std::vector<std::string> out;
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
  for (const std::string& problem : engine.problems()) out.push_back(problem);
  return out;
}

// Flags of the other way that were given.
std::vector<std::string> misplaced(const Options& options, bool over_http) {
  BenchServeOptions other;
  FieldList list;
  over_http ? other.offline_fields(list) : other.http_fields(list);
  std::vector<std::string> out;
  for (const auto& entry : list.entries()) {
    const std::string& name = entry->field.name();
    if (name == "offline" || name == "url" || name == "seed" || !options.given(name)) continue;
    out.push_back(concat("--", name,
                         over_http ? ": has no effect on a server; give it to the server, not with "
                                     "--url"
                                   : ": is for --url, not for --offline"));
  }
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

// The longest time between two tokens of a request.
std::optional<double> longest_gap_ms(const LoadResult& result) {
  std::optional<double> longest;
  for (const RequestRecord& record : result.requests) {
    for (std::size_t i = 1; i < record.token_times.size() && record.completed; ++i) {
      double gap = (record.token_times[i] - record.token_times[i - 1]) * 1e3;
      longest = std::max(longest.value_or(0), gap);
    }
  }
  return longest;
}

// What both ways know.
Json load_json(const LoadMetrics& metrics) {
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
  line["device_idle_share"] = Json();
  line["step_gap_share"] = Json();
  line["decode_tok_s"] = number(metrics.decode_tok_s);
  line["full_batch_tok_s"] = number(metrics.full_batch_tok_s);
  line["cached_tokens"] = metrics.cached_tokens;
  line["preemptions"] = Json();
  line["steps"] = Json();
  return line;
}

Json offline_json(const LoadMetrics& metrics, const LoadResult& result,
                  const std::optional<DeviceIdle>& idle) {
  Json line = load_json(metrics);
  if (idle) line["device_idle_share"] = idle->share;
  if (idle) line["step_gap_share"] = idle->between_steps;
  line["preemptions"] = result.statistics.preemptions;
  line["steps"] = result.statistics.steps;
  line["longest_itl_ms"] = number(longest_gap_ms(result));
  return line;
}

Json http_json(LoadMetrics metrics, const LoadResult& result, bool stream) {
  std::optional<double> longest;
  if (stream) {
    longest = longest_gap_ms(result);
  } else {
    for (auto member : {&LoadMetrics::ttft_ms, &LoadMetrics::itl_ms, &LoadMetrics::tpot_ms}) {
      (metrics.*member).reset();
    }
    for (auto member : {&LoadMetrics::decode_tok_s, &LoadMetrics::full_batch_tok_s}) {
      (metrics.*member).reset();
    }
  }
  Json line = load_json(metrics);
  line["longest_itl_ms"] = number(longest);
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
  write_stdout(offline_json(metrics, result, idle).dump() + "\n");
}

int run_offline(BenchServeOptions& wanted, const CommandInput& input) {
  RunConfig& run = wanted.run;
  Options& options = input.options;
  std::optional<SourceModel> source;
  if (wanted.preset_name.empty()) source.emplace(wanted.model);
  run.model = source ? source->config() : preset(wanted.preset_name);
  options.add_problems(run.parallel.resolve());
  options.throw_problems();
  run.parallel = inference_layout(run.parallel);
  options.add_problems(run.resolve_layout());
  options.throw_problems();
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

#ifdef BEV_HAS_SERVE
LoadResult load_server(const HttpLoadOptions& http, const LoadOptions& load,
                       const StopSignal& stop) {
  return run_http_load(http, load, &stop);
}
#else
LoadResult load_server(const HttpLoadOptions&, const LoadOptions&, const StopSignal&) {
  BEV_FAIL(ErrorKind::kConfig,
           "--url: this program was built without HTTP, since Boost or OpenSSL ",
           "was missing (libboost-dev, libssl-dev); build it anew, or give --offline");
}
#endif

int run_over_http(BenchServeOptions& wanted, const CommandInput& input) {
  StopSignal stop("closing its connections");
  wanted.http.verify_tls = !wanted.insecure;
  wanted.http.warmup = wanted.warmup < 0 ? 1 : wanted.warmup;
  on_process_0(input.launch, [&] {
    LoadResult result = load_server(wanted.http, wanted.load, stop);
    LoadMetrics metrics = load_metrics(wanted.load, result, wanted.level);
    write_stdout(http_json(metrics, result, wanted.http.stream).dump() + "\n");
    if (stop.received() == 0) return;
    log_info(concat("stopped by signal ", stop.received(), ": ", result.requests.size(), " of ",
                    wanted.load.requests, " requests had ended"));
  });
  return stop.received() == 0 ? kExitOk : kExitSignalBase + stop.received();
}

int run_bench_serve(BenchServeOptions& wanted, const CommandInput& input) {
  RunConfig& run = wanted.run;
  Options& options = input.options;
  const bool over_http = !wanted.http.url.empty();
  wanted.load.sampling.seed = static_cast<std::uint64_t>(run.runtime.seed);
  std::vector<std::string> problems = wanted.problems();
  auto add = [&](const std::vector<std::string>& more) {
    problems.insert(problems.end(), more.begin(), more.end());
  };
  if (over_http && wanted.offline) {
    problems.push_back("--url: excludes --offline; keep one");
  } else if (!over_http && !wanted.offline) {
    problems.push_back(
        "--url: is missing; give the server's, or --offline and a model to load an engine here");
  } else {
    add(misplaced(options, over_http));
    add(over_http ? wanted.http_problems() : wanted.offline_problems());
  }
  options.add_problems(problems);
  options.throw_problems();
  return over_http ? run_over_http(wanted, input) : run_offline(wanted, input);
}

}  // namespace

const Command kBenchServeCommand = {
    .name = "bench serve",
    .summary = "speed and latency of a server or of the inference engine under a load of requests",
    .examples =
        "bevatron bench serve --url http://127.0.0.1:8000 --requests 1000 --input-len 960 "
        "--output-len 128 --rate 8 --slo-ttft-ms 500\n"
        "bevatron bench serve --offline --hf-model DIR --requests 64 --input-len 960 "
        "--output-len 128 --bf16\n"
        "bevatron bench serve --offline --preset llama3-8b --requests 1000 --input-len 1000 "
        "--output-len 1000 --rate 8 --slo-ttft-ms 500 --bf16\n"
        "bevatron bench serve --offline --load RUN --requests 100 --input-len 4160 --output-len 64 "
        "--shared-prefix 4096 --concurrency 1",
    .call = call_of<BenchServeOptions, run_bench_serve>};

}  // namespace bev
