#include "train/memory_report.h"

#include <fmt/format.h>

#include <utility>

namespace bev {

std::string memory_text(const Arena& arena, std::span<const Arena* const> hosts, int rank,
                        std::int64_t iterations) {
  auto megabytes = [](std::size_t bytes) { return static_cast<double>(bytes) / 1048576; };
  // The arena never releases memory, so `reserved` is also the maximum.
  std::string text = fmt::format(
      "[Rank {}] (after {} iterations) memory (MB) | allocated: {:.2f} | max allocated: {:.2f} | "
      "reserved: {:.2f} | max reserved: {:.2f}\nat the peak:",
      rank, iterations, megabytes(arena.in_use()), megabytes(arena.peak()),
      megabytes(arena.reserved()), megabytes(arena.reserved()));
  auto add_tags = [&](const Arena::TagTable& tags) {
    for (const auto& [tag, bytes] : tags) {
      text += fmt::format("\n  {:<24} {:>12.2f}", tag, megabytes(bytes));
    }
  };
  add_tags(arena.peak_by_tag());
  bool named = false;
  for (const Arena* host : hosts) {
    if (host == nullptr || host->peak() == 0) continue;
    if (!std::exchange(named, true)) text += "\nin host memory, at the peak:";
    add_tags(host->peak_by_tag());
  }
  return text;
}

std::string memory_cures(const BatchConfig& batch, const ParallelConfig& parallel) {
  std::string text = "\nless memory is needed with:";
  auto add = [&](bool helps, std::string_view cure) {
    if (helps) text += fmt::format("\n  {}", cure);
  };
  add(batch.micro_batch_size > 1,
      fmt::format("a --micro-batch-size below {}", batch.micro_batch_size));
  add(parallel.recompute_granularity != RecomputeGranularity::kFull,
      "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1");
  add(!parallel.offload.any(), "--cpu-offloading-num-layers, which keeps activations on the host");
  bool all_sharded =
      parallel.data_parallel_sharding_strategy == ShardingStrategy::kOptimGradsParams;
  std::int64_t copies = parallel.data_parallel_size * parallel.context_parallel_size;
  add(!all_sharded && copies > 1, "--data-parallel-sharding-strategy optim_grads_params");
  add(true, "--exp-avg-dtype bf16 --exp-avg-sq-dtype bf16, for moments of half the size, or fp8");
  add(true, "--optimizer-cpu-offload, where the device has memory of its own: state on the host");
  add(true,
      "more ranks: --tensor-model-parallel-size, --pipeline-model-parallel-size or "
      "--context-parallel-size");
  return text + "\n--dry-run says what a run needs before it starts";
}

}  // namespace bev
