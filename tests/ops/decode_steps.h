// Steps of a sequence whose keys lie in shuffled blocks of two.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/attention/attention.h"

namespace bev::test {

inline constexpr std::int64_t kCacheBlocks = 6, kBlockTokens = 2;
inline constexpr std::int64_t kCacheRows = kCacheBlocks * kBlockTokens;

// Tokens [row, row + count) of a sequence. The run is exact, or is a bound and read from the
// device.
inline DecodeStep decode_step(Context& ctx, std::int32_t row, std::int32_t count, bool bound) {
  const std::vector<std::int32_t> table = {3, 1, 4, 2, 5};
  std::vector<std::int32_t> write;
  for (std::int32_t at = row; at < row + count; ++at) {
    write.push_back(table[static_cast<std::size_t>(at / kBlockTokens)] * 2 + at % 2);
  }
  const AttentionRun run{0, count, 0, row + count, row};
  DecodeStep step;
  step.runs = {run};
  step.write_rows = ctx.upload<std::int32_t>(write, "test");
  step.block_table = ctx.upload<std::int32_t>(table, "test");
  step.table_stride = std::ssize(table);
  step.block_tokens = kBlockTokens;
  if (!bound) return step;
  step.device_runs = ctx.upload(Dtype::kU8, sizeof run, &run, "test");
  step.runs[0].k_count = static_cast<std::int32_t>(kBlockTokens * std::ssize(table));
  step.runs[0].offset = 0;
  return step;
}

}  // namespace bev::test
