#include "infer/load_metrics.h"

#include <algorithm>
#include <cmath>

namespace bev {

namespace {

constexpr double kMilliseconds = 1e3;

struct Samples {
  std::vector<double> ttft_ms, itl_ms, tpot_ms, e2e_ms;
};

// Adds the latencies of a completed request; returns whether it is good.
bool add_latencies(const RequestRecord& record, const ServiceLevel& level, Samples& samples) {
  const std::vector<double>& times = record.token_times;
  if (times.empty()) return true;
  double ttft = (times.front() - record.arrival) * kMilliseconds;
  samples.ttft_ms.push_back(ttft);
  samples.e2e_ms.push_back((times.back() - record.arrival) * kMilliseconds);
  bool good = level.ttft_ms == 0 || ttft <= level.ttft_ms;
  if (times.size() == 1) return good;
  for (std::size_t i = 1; i < times.size(); ++i) {
    samples.itl_ms.push_back((times[i] - times[i - 1]) * kMilliseconds);
  }
  auto gaps = static_cast<double>(times.size() - 1);
  double tpot = (times.back() - times.front()) * kMilliseconds / gaps;
  samples.tpot_ms.push_back(tpot);
  return good && (level.itl_ms == 0 || tpot <= level.itl_ms);
}

// Tokens/s that come in (begin, end]; nullopt if that is no time.
std::optional<double> rate_within(const std::vector<RequestRecord>& records, double begin,
                                  double end) {
  if (!(end > begin)) return std::nullopt;
  std::int64_t tokens = 0;
  for (const RequestRecord& record : records) {
    tokens += std::ranges::upper_bound(record.token_times, end) -
              std::ranges::upper_bound(record.token_times, begin);
  }
  return static_cast<double>(tokens) / (end - begin);
}

void set_decode_rates(const std::vector<RequestRecord>& records, LoadMetrics& metrics) {
  double begin = 0, first_end = INFINITY, last_end = 0;
  for (const RequestRecord& record : records) {
    if (!record.completed || std::ssize(record.token_times) <= kDecodeFrom) return;
    begin = std::max(begin, record.token_times[kDecodeFrom - 1]);
    first_end = std::min(first_end, record.token_times.back());
    last_end = std::max(last_end, record.token_times.back());
  }
  metrics.full_batch_tok_s = rate_within(records, begin, first_end);
  if (metrics.full_batch_tok_s) metrics.decode_tok_s = rate_within(records, begin, last_end);
}

}  // namespace

std::optional<Percentiles> percentiles_of(std::vector<double> values) {
  if (values.empty()) return std::nullopt;
  std::ranges::sort(values);
  Percentiles out{};
  for (std::size_t i = 0; i < out.size(); ++i) {
    double place = kPercentiles[i] / 100 * static_cast<double>(values.size() - 1);
    auto below = static_cast<std::size_t>(place);
    std::size_t above = std::min(below + 1, values.size() - 1);
    out[i] = std::lerp(values[below], values[above], place - static_cast<double>(below));
  }
  return out;
}

LoadMetrics load_metrics(const LoadOptions& options, const LoadResult& result,
                         const ServiceLevel& level) {
  LoadMetrics metrics;
  Samples samples;
  std::int64_t good = 0;
  for (const RequestRecord& record : result.requests) {
    metrics.output_tokens += std::ssize(record.token_times);
    metrics.cached_tokens += record.cached_tokens;
    if (!record.token_times.empty()) {
      metrics.duration_s = std::max(metrics.duration_s, record.token_times.back());
    }
    if (!record.completed) {
      ++metrics.failed;
      continue;
    }
    ++metrics.completed;
    metrics.input_tokens += options.input_tokens;
    if (add_latencies(record, level, samples)) ++good;
  }
  double seconds = std::max(metrics.duration_s, 1e-9);
  metrics.output_tok_s = static_cast<double>(metrics.output_tokens) / seconds;
  metrics.goodput_rps = static_cast<double>(good) / seconds;
  metrics.ttft_ms = percentiles_of(std::move(samples.ttft_ms));
  metrics.itl_ms = percentiles_of(std::move(samples.itl_ms));
  metrics.tpot_ms = percentiles_of(std::move(samples.tpot_ms));
  metrics.e2e_ms = percentiles_of(std::move(samples.e2e_ms));
  if (options.closed()) set_decode_rates(result.requests, metrics);
  return metrics;
}

}  // namespace bev
