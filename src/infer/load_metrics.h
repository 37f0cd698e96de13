// What serving benchmarks report of a load, by the definitions of vLLM's: time to first token
// (TTFT), inter-token latency (ITL), time per output token after the first (TPOT), end to end
// (E2E).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "infer/load_test.h"

namespace bev {

// 50th, 90th and 99th, interpolated linearly.
using Percentiles = std::array<double, 3>;
inline constexpr std::array<double, 3> kPercentiles = {50, 90, 99};
// nullopt without values.
std::optional<Percentiles> percentiles_of(std::vector<double> values);

// A request is good if it completes within both; 0: no limit.
struct ServiceLevel {
  double ttft_ms = 0;
  double itl_ms = 0;  // mean between its tokens
};

struct LoadMetrics {
  std::int64_t completed = 0, failed = 0;
  double duration_s = 0;  // to the last token
  std::int64_t input_tokens = 0, output_tokens = 0, cached_tokens = 0;
  double output_tok_s = 0;
  std::optional<Percentiles> ttft_ms, itl_ms, tpot_ms, e2e_ms;
  double goodput_rps = 0;  // good requests per second
  // Output tokens/s of a load that arrived at once, from when every request has kDecodeFrom tokens:
  // to the end, and to the first end of a request. nullopt if not all requests run at a time.
  std::optional<double> decode_tok_s, full_batch_tok_s;
};
inline constexpr std::int64_t kDecodeFrom = 16;

LoadMetrics load_metrics(const LoadOptions& options, const LoadResult& result,
                         const ServiceLevel& level);

}  // namespace bev
