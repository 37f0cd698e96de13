#include "app/memory_fit.h"

#include <algorithm>
#include <array>
#include <optional>

#include "app/dry_run.h"
#include "app/ranks.h"
#include "base/divide.h"
#include "base/error.h"
#include "base/host_memory.h"
#include "base/text.h"
#include "tensor/arena.h"

namespace bev {

namespace {

// The ranks of this process.
std::span<const RankMemory> own_ranks(const MemoryPlan& plan, const Launch& launch) {
  std::size_t count = plan.ranks.size() / static_cast<std::size_t>(launch.processes);
  return std::span(plan.ranks).subspan(static_cast<std::size_t>(launch.process) * count, count);
}

// Host memory of offloaded parts, of all ranks of this machine.
double offloaded_bytes(const MemoryPlan& plan, const Launch& launch) {
  double bytes = 0;
  for (const RankMemory& rank : own_ranks(plan, launch)) bytes += static_cast<double>(rank.host());
  return bytes * static_cast<double>(launch.local_processes);
}

// A setting that needs less memory.
struct Saving {
  std::string_view flags;  // {} is the number of layers to offload
  bool (*helps)(const RunConfig& run, bool on_gpu);
  void (*apply)(RunConfig& run);
};

// Layers of a stage but the last, whose backward follows at once.
std::int64_t layers_to_offload(const RunConfig& run) {
  std::int64_t stage = run.model.num_layers / run.parallel.pipeline_model_parallel_size;
  return std::max<std::int64_t>(stage - 1, 1);
}

std::string flags_text(const Saving& saving, const RunConfig& run) {
  std::string text(saving.flags);
  constexpr std::string_view kBf16 = "--bf16 ";
  if (run.precision.bf16 && text.starts_with(kBf16)) text.erase(0, kBf16.size());
  std::size_t at = text.find("{}");
  return at == text.npos ? text : text.replace(at, 2, concat(layers_to_offload(run)));
}

constexpr std::int64_t kMostPlanned = 1 << 14;  // micro-batches of a candidate, to plan it quickly

// Those that change least come first.
constexpr auto kSavings = std::to_array<Saving>({
    {"--micro-batch-size 1",
     [](const RunConfig& run, bool) {
       return run.batch.micro_batch_size > 1 && run.batch.global_batch_size <= kMostPlanned;
     },
     [](RunConfig& run) { run.batch.micro_batch_size = 1; }},
    {"--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
     [](const RunConfig& run, bool) {
       return run.parallel.recompute_granularity != RecomputeGranularity::kFull;
     },
     [](RunConfig& run) {
       run.parallel.recompute_granularity = RecomputeGranularity::kFull;
       run.parallel.recompute_method = RecomputeMethod::kUniform;
       run.parallel.recompute_num_layers = 1;
     }},
    {"--bf16",
     [](const RunConfig& run, bool) { return run.precision.model_dtype() == Dtype::kF32; },
     [](RunConfig& run) { run.precision.bf16 = true; }},
    {"--data-parallel-sharding-strategy optim_grads_params",
     [](const RunConfig& run, bool) {
       return run.parallel.data_parallel_size * run.parallel.context_parallel_size > 1 &&
              run.parallel.data_parallel_sharding_strategy != ShardingStrategy::kOptimGradsParams;
     },
     [](RunConfig& run) {
       run.parallel.data_parallel_sharding_strategy = ShardingStrategy::kOptimGradsParams;
     }},
    {"--cpu-offloading-num-layers {}",
     [](const RunConfig& run, bool on_gpu) { return on_gpu && !run.parallel.offload.any(); },
     [](RunConfig& run) {
       run.parallel.offload.cpu_offloading_num_layers = layers_to_offload(run);
     }},
    {"--optimizer-cpu-offload",
     [](const RunConfig& run, bool on_gpu) { return on_gpu && !run.optim.optimizer_cpu_offload; },
     [](RunConfig& run) { run.optim.optimizer_cpu_offload = true; }},
    {"--exp-avg-dtype bf16 --exp-avg-sq-dtype bf16",
     [](const RunConfig& run, bool) {
       return run.optim.optimizer == OptimizerKind::kAdamW && !run.precision.fp64 &&
              run.optim.dtypes.exp_avg == Dtype::kF32;
     },
     [](RunConfig& run) { run.optim.dtypes.exp_avg = run.optim.dtypes.exp_avg_sq = Dtype::kBf16; }},
    {"--bf16 --main-params-dtype bf16 --main-grads-dtype bf16",
     [](const RunConfig& run, bool) {
       Dtype dtype = run.precision.model_dtype();
       return run.optim.optimizer == OptimizerKind::kAdamW &&
              run.optim.dtypes.main_params == Dtype::kF32 &&
              (dtype == Dtype::kF32 || dtype == Dtype::kBf16);
     },
     [](RunConfig& run) {
       run.precision.bf16 = true;
       run.optim.dtypes.main_params = run.optim.dtypes.main_grads = Dtype::kBf16;
     }},
});

// Where the process has too few addresses for a plan.
std::string advice_without_plan(const RunConfig& run) {
  std::string text = "\nless memory is needed with:";
  for (const Saving& saving : kSavings) {
    if (saving.helps(run, gpu_info(run.runtime).used)) {
      text += concat("\n  ", flags_text(saving, run));
    }
  }
  return text;
}

// The memory of a changed run; nullopt if its settings do not go together.
std::optional<MemoryFit> planned_fit(RunConfig run, const Launch& launch, double host_bytes) {
  if (!run.resolve_layout().empty()) return std::nullopt;
  try {
    return memory_fit(run, planned_memory(run), launch, host_bytes);
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

std::string MemoryFit::text() const {
  if (needed_bytes == 0) return "not known";
  std::string needed = concat(format_bytes(needed_bytes), " needed");
  const char* place = on_gpu ? " on a GPU" : " on this machine";
  return there_bytes == 0 ? needed + place
                          : concat(needed, ", ", format_bytes(there_bytes), " there", place);
}

MemoryFit memory_fit(const RunConfig& run, const MemoryPlan& plan, const Launch& launch,
                     double host_bytes) {
  MemoryFit fit;
  GpuInfo gpus = gpu_info(run.runtime);
  fit.on_gpu = gpus.used;
  std::span<const RankMemory> ranks = own_ranks(plan, launch);
  auto local = static_cast<std::int64_t>(ranks.size()) * launch.local_processes;
  if (!fit.on_gpu) {
    for (const RankMemory& rank : ranks) {
      fit.needed_bytes += static_cast<double>(rank.total() + rank.host());
    }
    fit.needed_bytes *= static_cast<double>(launch.local_processes);
    fit.there_bytes = host_bytes;
    return fit;
  }
  // Ranks are assigned to the GPUs of a machine in turn.
  std::int64_t sharers = gpus.count > 0 ? ceil_div(local, gpus.count) : 1;
  auto total = [](const RankMemory& rank) { return rank.total(); };
  fit.needed_bytes = static_cast<double>(std::ranges::max(ranks, {}, total).total() * sharers);
  fit.there_bytes = gpus.memory_bytes;
  return fit;
}

std::string memory_advice(const RunConfig& run, const Launch& launch, double host_bytes) {
  std::optional<MemoryFit> now = planned_fit(run, launch, host_bytes);
  if (!now) return advice_without_plan(run);
  std::string text, together;
  RunConfig all = run;
  std::optional<MemoryFit> least = now;
  auto add = [&](std::string_view flags, const MemoryFit& fit) {
    text += concat("\n  ", flags, ": ", format_bytes(fit.needed_bytes));
  };
  for (const Saving& saving : kSavings) {
    if (!saving.helps(run, now->on_gpu)) continue;
    RunConfig changed = run, more = all;
    std::string flags = flags_text(saving, run);
    saving.apply(changed);
    saving.apply(more);
    std::optional<MemoryFit> alone = planned_fit(changed, launch, host_bytes);
    if (alone && alone->fits() && alone->needed_bytes < now->needed_bytes) add(flags, *alone);
    std::optional<MemoryFit> joint = planned_fit(more, launch, host_bytes);
    if (!joint || joint->needed_bytes >= least->needed_bytes) continue;
    bool first = !least->fits() && joint->fits() && !together.empty();
    together += concat(together.empty() ? "" : " ", flags_text(saving, all));
    all = more;
    least = joint;
    if (first && (!alone || !alone->fits())) add(together, *joint);
  }
  std::string ranks =
      "more ranks with memory of their own (--tensor-model-parallel-size, "
      "--pipeline-model-parallel-size)";
  if (!text.empty()) return concat("\nwhat would fit:", text);
  if (together.empty()) return concat("\nuse a smaller model, or ", ranks);
  return concat("\nthe least of the settings tried needs ", format_bytes(least->needed_bytes), ": ",
                together, "\nuse a smaller model too, or ", ranks);
}

MemoryFit check_memory(const RunConfig& run, const Launch& launch) {
  MemoryPlan plan;
  try {
    plan = planned_memory(run);
  } catch (const OutOfMemory&) {
    return {};
  }
  double there = free_host_memory(), offloaded = offloaded_bytes(plan, launch);
  MemoryFit fit = memory_fit(run, plan, launch, there);
  if (there > 0 && offloaded > there) {
    BEV_FAIL(ErrorKind::kConfig, "what is offloaded needs ", format_bytes(offloaded),
             " of this machine's host memory, of which ", format_bytes(there),
             " are free; offload less (--cpu-offloading-num-layers, --offload-modules, "
             "--activation-offload-fraction, --optimizer-offload-fraction), or keep moments in "
             "fewer bits (--exp-avg-dtype fp8 --exp-avg-sq-dtype fp8)");
  }
  BEV_CHECK(fit.fits(), ErrorKind::kConfig, "the run does not fit into memory: ", fit.text(),
            memory_advice(run, launch, there));
  return fit;
}

}  // namespace bev
