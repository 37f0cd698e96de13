// verify: compares every layout with one rank: loss, gradients, and weights after a few steps.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "app/choose_model.h"
#include "app/commands/commands.h"
#include "app/options.h"
#include "app/ranks.h"
#include "app/run_config.h"
#include "app/run_summary.h"
#include "base/divide.h"
#include "base/error.h"
#include "base/fields.h"
#include "base/log.h"
#include "base/output.h"
#include "bridge/hf_model.h"
#include "models/encoder_samples.h"
#include "models/families/family.h"
#include "parallel/pipeline/schedule.h"
#include "verify/layout_check.h"
#include "verify/layouts.h"
#include "verify/scaled_down.h"

namespace bev {

namespace {

struct VerifyOptions {
  std::string layouts = "tp2sp pp2 dp2zero1 dp2zero3";
  std::int64_t all = 0;  // all layouts of this number of ranks instead
  std::int64_t steps = 3;
  bool full_size = false;  // the configuration unchanged, not scaled down
  bool f64 = false;        // instead of the configured dtype
  bool fp32 = false;       // instead of f64
  double tolerance = 0.0;  // for gradients; 0: by precision
  RunConfig run;

  void fields(FieldList& list);
};

void VerifyOptions::fields(FieldList& list) {
  list.section("verify");
  list.add("layouts", layouts,
           concat("layouts to compare with one rank, separated by spaces; each of tokens, joined "
                  "by commas or directly: tpN sp tpoverlap, ppN vppN groupN ",
                  join(schedule_words(), " "),
                  " [STAGES], dpN zero1..zero3 instancesN gradoverlap paramoverlap, cpN p2p a2a "
                  "allgather a2aNp2pN, epN etpN, dpouter; STAGES are those of "
                  "--pipeline-model-parallel-layout: pp3[Ett|ttm|L]"));
  list.add("all", all, "every layout of so many ranks that the model allows; 0: those of --layouts")
      .min(0)
      .limit(64);
  list.add("steps", steps, "training steps to compare").min(1).limit(1000);
  list.add("full-size", full_size,
           "the configuration as it is; otherwise a small model of its kind");
  list.add("f64", f64, "compare in f64, also where the configuration says --bf16 or --fp16");
  list.add("fp32", fp32,
           "compare in f32; the default is f64, with --bf16 or --fp16 that, with FP8 alone f32");
  list.add("tolerance", tolerance,
           "allowed difference of a gradient, relative to the tensor's largest; 0: by precision")
      .min(0);
  run.fields(list);
}

struct Tolerance {
  double gradients = 0;
  double weights = 0;  // infinity: not compared
};

// Relative to the amax of each tensor. With rounding, Adam turns noise in a gradient that should be
// zero into full steps, so weights are compared in f64 only.
Tolerance default_tolerance(Dtype dtype, bool fp8) {
  // Another order of summation moves some values to the neighbouring FP8 value.
  if (fp8) return {1e-1, INFINITY};
  switch (dtype) {
    case Dtype::kF64:
      return {1e-11, 1e-9};
    case Dtype::kF32:
      return {2e-5, INFINITY};
    default:
      return {5e-2, INFINITY};
  }
}

struct VerifyPlan {
  LayoutRun single;
  std::vector<StepSamples> batches;
  std::vector<ParallelConfig> layouts;
  Tolerance tolerance;
};

// Tokens of a sample; 2 is the shortest that can be split into two documents.
std::int64_t sample_length(const VerifyOptions& wanted) {
  constexpr std::int64_t kSmall = 13;
  const RunConfig& run = wanted.run;
  return std::min(wanted.full_size ? run.data.seq_length : kSmall,
                  run.model.max_position_embeddings);
}

// Problems of a layout for this model, except the `known` ones.
std::vector<std::string> layout_problems(const RunConfig& run, const ParallelConfig& layout,
                                         const std::vector<std::string>& known) {
  RunConfig copy = run;
  copy.parallel = layout;
  copy.train.dry_run = false;  // layouts are really run
  std::vector<std::string> problems = copy.resolve_layout();
  std::erase_if(problems, [&](const std::string& problem) {
    return std::ranges::find(known, problem) != known.end();
  });
  return problems;
}

// For --all, the layouts that fit the model; for --layouts, all of them, so that problems are
// reported.
std::vector<ParallelConfig> wanted_layouts(const VerifyOptions& wanted,
                                           const std::vector<std::string>& known) {
  const RunConfig& run = wanted.run;
  if (wanted.all == 0) return parse_layouts(wanted.layouts, run.parallel);
  std::vector<ParallelConfig> layouts = all_layouts(wanted.all, run.parallel);
  if (run.model.moe.any()) layouts = with_experts(layouts);
  std::erase_if(layouts, [&](const ParallelConfig& layout) {
    return !layout_problems(run, layout, known).empty();
  });
  return layouts;
}

// Whether the requested FP8 GEMMs and optimizer state are possible with a model in `dtype`.
bool dtype_fits(const RunConfig& run, Dtype dtype) {
  return !(run.fp8.used() && dtype == Dtype::kF64) && run.optim.state_problems(dtype).empty();
}

// The dtype of the comparison.
Dtype compared_dtype(const VerifyOptions& wanted) {
  const RunConfig& run = wanted.run;
  if (wanted.fp32) return Dtype::kF32;
  if (wanted.f64) return Dtype::kF64;
  if (run.precision.bf16 || run.precision.fp16) return run.precision.model_dtype();
  return dtype_fits(run, Dtype::kF64) ? Dtype::kF64 : Dtype::kF32;
}

std::vector<std::string> verify_problems(VerifyOptions& wanted, const Launch& launch,
                                         std::vector<ParallelConfig>& layouts) {
  std::vector<std::string> problems = wanted.run.resolve();
  if (wanted.f64 && wanted.fp32) {
    problems.push_back("--f64: excludes --fp32; keep one");
  }
  if (wanted.run.fp8.used() && !wanted.full_size) {
    problems.push_back(
        "--fp8-format, --fp4-format: the small model that is compared has no sizes for such "
        "products; add --full-size, and sizes of your own such as --hidden-size 128");
  }
  Dtype dtype = compared_dtype(wanted);
  if (problems.empty() && !dtype_fits(wanted.run, dtype)) {
    problems.push_back(concat(dtype == Dtype::kF64 ? "--f64" : "--fp32", ": a model in ",
                              name_of(dtype),
                              " does not have these products or this optimizer "
                              "state of fewer bits; leave it out"));
  }
  // Without a model shape no layout can be checked.
  if (!wanted.run.model.problems().empty()) return problems;
  try {
    std::vector<std::string> known = problems;
    layouts = wanted_layouts(wanted, known);
    for (const ParallelConfig& layout : layouts) {
      for (const std::string& problem : layout_problems(wanted.run, layout, known)) {
        problems.push_back(concat("--layouts: ", layout_text(layout), ": ", problem));
      }
    }
    // Processes keep the number of ranks that they start with.
    for (const ParallelConfig& layout : layouts) {
      std::int64_t here = mesh_shape(layout).size(), first = mesh_shape(layouts.front()).size();
      if (launch.processes == 1 || here == first) continue;
      problems.push_back(concat("--layouts: ", layout_text(layout), ": has ", here, " ranks and ",
                                layout_text(layouts.front()), " has ", first,
                                "; in several processes all must have as many"));
    }
    if (layouts.empty()) {
      problems.push_back(concat("--all: the model cannot be cut over ", wanted.all, " ranks"));
    }
  } catch (const Error& error) {
    problems.emplace_back(error.what());
  }
  return problems;
}

// Number of samples of a step. Ranks with a short or empty share are tested too, except if a
// schedule needs whole groups of micro-batches.
std::int64_t sample_count(const std::vector<ParallelConfig>& layouts) {
  std::int64_t least = 4, whole = 1;
  for (const ParallelConfig& layout : layouts) {
    least = std::max(least, layout.data_parallel_size);
    bool interleaved = layout.num_virtual_stages_per_pipeline_rank > 1 &&
                       traits_of(layout.pipeline_schedule).grouped;
    if (!interleaved) continue;
    std::int64_t group =
        std::max(layout.microbatch_group_size, layout.pipeline_model_parallel_size);
    whole = std::lcm(whole, layout.data_parallel_size * group);
  }
  return round_up(least, whole);
}

VerifyPlan make_plan(const VerifyOptions& wanted, std::vector<ParallelConfig> layouts) {
  const RunConfig& run = wanted.run;
  VerifyPlan plan;
  plan.layouts = std::move(layouts);
  EngineOptions& engine = plan.single.engine;
  engine = engine_options(run, threads_per_rank(run.runtime, 1));
  if (!wanted.full_size) engine.model = scaled_down(canonical(run.model), plan.layouts);
  engine.parallel = parse_layouts("tp1", run.parallel).front();
  engine.dtype = compared_dtype(wanted);
  plan.tolerance = default_tolerance(engine.dtype, run.fp8.used());
  if (wanted.tolerance > 0) plan.tolerance.gradients = wanted.tolerance;
  plan.single.steps = wanted.steps;
  plan.single.timeout_seconds = run.parallel.distributed_timeout_minutes * 60;

  std::int64_t samples = sample_count(plan.layouts);
  for (std::int64_t step = 0; step < plan.single.steps; ++step) {
    plan.batches.push_back(random_samples(engine.model.vocab_size, samples, sample_length(wanted),
                                          static_cast<std::uint64_t>(run.runtime.seed + step)));
    add_encoder_fields(engine.model, plan.batches.back());
  }
  return plan;
}

nlohmann::ordered_json number_or_null(double value) {
  return std::isfinite(value) ? nlohmann::ordered_json(value) : nullptr;
}

// One row per layout, in a column as wide as the longest name. With JSON output the table is only
// progress.
class VerifyTable {
 public:
  VerifyTable(const VerifyPlan& plan, bool as_json)
      : tolerance_(plan.tolerance), as_json_(as_json) {
    for (const ParallelConfig& layout : plan.layouts) {
      width_ = std::max(width_, layout_text(layout).size());
    }
    const ModelConfig& model = plan.single.engine.model;
    say(fmt::format(
        "{} layers, hidden {}, {} heads ({} kv), vocabulary {}, {}; {} steps of {} samples\n"
        "{:<{}} {:>14} {:>14} {:>9} {:>9}  {:<7}  {}",
        model.num_layers, model.hidden_size, model.num_attention_heads, model.kv_heads(),
        model.vocab_size, name_of(plan.single.engine.dtype), plan.single.steps,
        plan.batches.front().size(), "layout", width_, "loss", "gradient norm", "gradient",
        "weights", "", "worst gradient"));
  }

  // Sets the reference answer of one rank.
  void set_expected(LayoutAnswer answer) {
    expected_ = std::move(answer);
    add("1 rank", expected_);
    different_ = 0;
    rows_.clear();
  }
  void add(const std::string& name, const LayoutAnswer& actual) {
    // A gradient that is zero except for rounding has no scale of its own to compare with.
    constexpr double kFloor = 1e-3;
    TensorDifference gradient = largest_difference(expected_.gradients, actual.gradients, kFloor);
    TensorDifference weight = largest_difference(expected_.weights, actual.weights, kFloor);
    TensorDifference report = largest_difference(expected_.reports, actual.reports, kFloor);
    double loss = std::abs(actual.losses.front() / expected_.losses.front() - 1);
    bool reports = report.value <= tolerance_.weights;
    bool same = loss <= tolerance_.gradients && gradient.value <= tolerance_.gradients &&
                weight.value <= tolerance_.weights && reports;
    std::string weights =
        std::isinf(tolerance_.weights) ? "-" : fmt::format("{:.1e}", weight.value);
    say(fmt::format("{:<{}} {:>14.10f} {:>14.10f} {:>9.1e} {:>9}  {:<7}  {}{}", name, width_,
                    actual.losses.front(), actual.grad_norms.front(), gradient.value, weights,
                    same ? "same" : "DIFFERS", gradient.name,
                    reports ? "" : concat("; ", report.name)));
    if (!same) ++different_;
    rows_.push_back({{"layout", name},
                     {"loss_diff", number_or_null(loss)},
                     {"grad_diff", number_or_null(gradient.value)},
                     {"weight_diff", number_or_null(weight.value)},
                     {"ok", same}});
  }
  void add_failure(const std::string& name, const Error& error) {
    say(fmt::format("{:<{}} FAILS: {}", name, width_, error.what()));
    ++different_;
    rows_.push_back({{"layout", name},
                     {"loss_diff", nullptr},
                     {"grad_diff", nullptr},
                     {"weight_diff", nullptr},
                     {"ok", false},
                     {"error", error.what()}});
  }
  // Prints the last line.
  void finish() const {
    say(fmt::format("{} of {} layouts give one rank's answer", rows_.size() - different_,
                    rows_.size()));
    if (!as_json_) return;
    nlohmann::ordered_json result{{"ok", different_ == 0}, {"layouts", rows_}};
    write_stdout(result.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  }
  bool all_same() const { return different_ == 0; }

 private:
  void say(std::string text) const {
    if (as_json_) {
      log_info(text);
    } else {
      write_stdout(text + "\n");
    }
  }

  Tolerance tolerance_;
  bool as_json_;
  std::size_t width_ = 24, different_ = 0;
  LayoutAnswer expected_;
  nlohmann::ordered_json rows_ = nlohmann::ordered_json::array();
};

LayoutRun layout_run(const VerifyPlan& plan, const ParallelConfig& layout, int threads) {
  LayoutRun run = plan.single;
  run.engine.parallel = layout;
  run.engine.threads = threads;
  return run;
}

// Runs each layout on threads of this process.
void compare_here(const VerifyPlan& plan, const RuntimeConfig& runtime, VerifyTable& table) {
  for (const ParallelConfig& layout : plan.layouts) {
    int threads = threads_per_rank(runtime, mesh_shape(layout).size());
    try {
      table.add(layout_text(layout), run_layout(layout_run(plan, layout, threads),
                                                device_kernels(runtime), plan.batches));
    } catch (const Error& error) {
      table.add_failure(layout_text(layout), error);
    }
  }
}

// Runs each layout on the ranks of all processes; process 0 has the table.
void compare_in_processes(const VerifyPlan& plan, const Launch& launch,
                          const RuntimeConfig& runtime, VerifyTable* table) {
  run_ranks(launch, plan.layouts.front(), runtime, [&](const RankStart& start) {
    for (const ParallelConfig& layout : plan.layouts) {
      LayoutAnswer actual = run_layout_rank(start.world, layout_run(plan, layout, start.threads),
                                            start.kernels, plan.batches);
      if (start.world.rank() == 0) table->add(layout_text(layout), actual);
    }
  });
}

int run_verify(VerifyOptions& wanted, const CommandInput& input) {
  RunConfig& run = wanted.run;
  choose_model(run, input.fields, input.options);
  run.train.dry_run = true;  // neither data nor a length is needed
  std::vector<ParallelConfig> layouts;
  input.options.add_problems(verify_problems(wanted, input.launch, layouts));
  input.options.throw_problems();
  VerifyPlan plan = make_plan(wanted, std::move(layouts));
  if (input.launch.process != 0) {
    compare_in_processes(plan, input.launch, run.runtime, nullptr);
    return kExitOk;
  }
  log_info(concat("model: ", architecture_text(plan.single.engine.model)));
  VerifyTable table(plan, run.train.json);
  table.set_expected(run_layout(plan.single, device_kernels(run.runtime), plan.batches));
  if (input.launch.processes == 1) {
    compare_here(plan, run.runtime, table);
  } else {
    compare_in_processes(plan, input.launch, run.runtime, &table);
  }
  table.finish();
  return table.all_same() ? kExitOk : kExitMismatch;
}

}  // namespace

const Command kVerifyCommand = {
    .name = "verify",
    .summary = "show that layouts give one rank's loss, gradients and weights",
    .examples =
        "bevatron verify --preset llama3-8b --layouts \"tp2sp,pp2 dp4zero3\"\n"
        "bevatron verify --config run.yaml --all 8",
    .call = call_of<VerifyOptions, run_verify>};

}  // namespace bev
