#include "infer/sampler.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "base/error.h"
#include "base/philox.h"

namespace bev {

namespace {

struct Candidate {
  double weight;  // exp((logit - largest logit) / temperature)
  std::int32_t token;
};

// Heap order: the most likely on top, the lowest id first among equals.
bool less_likely(const Candidate& a, const Candidate& b) {
  return a.weight != b.weight ? a.weight < b.weight : a.token > b.token;
}

// Computes on the host what the kernels compute for a row on the device.
template <class T>
RowSummary summarise(std::span<const T> logits) {
  RowSummary row{.largest = -std::numeric_limits<double>::infinity()};
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (!(logits[i] > row.largest)) continue;
    row.largest = static_cast<double>(logits[i]);
    row.at = static_cast<std::int64_t>(i);
  }
  double sum = 0;
  for (T logit : logits) sum += std::exp(static_cast<double>(logit) - row.largest);
  row.log_sum = std::log(sum);
  return row;
}

void check_row(const RowSummary& row, const TokenPlace& place) {
  BEV_CHECK(std::isfinite(row.log_sum), ErrorKind::kNumeric, "sampling: the logits of sequence ",
            place.sequence, " at position ", place.position,
            " hold NaN or +Inf, or none of them is finite");
}

// The k-th largest logit (top-k threshold); -infinity if all are kept.
template <class T>
T keep_from(std::span<const T> logits, std::int64_t top_k) {
  auto k = static_cast<std::size_t>(top_k);
  if (k == 0 || k >= logits.size()) return -std::numeric_limits<T>::infinity();
  std::vector<T> order(logits.begin(), logits.end());
  auto kth = order.begin() + static_cast<std::ptrdiff_t>(k - 1);
  std::nth_element(order.begin(), kth, order.end(), std::greater<T>());
  return *kth;
}

double sum_weights(std::span<const Candidate> candidates) {
  double sum = 0;
  for (const Candidate& candidate : candidates) sum += candidate.weight;
  return sum;
}

// top-p: most likely first, truncated where top_p says. A heap extracts only the few that remain.
void cut_to_probability(std::vector<Candidate>& candidates, double top_p) {
  double limit = top_p * sum_weights(candidates);
  std::make_heap(candidates.begin(), candidates.end(), less_likely);
  auto heap_end = candidates.end();
  double before = 0;
  do {
    std::pop_heap(candidates.begin(), heap_end, less_likely);
    before += (--heap_end)->weight;
  } while (heap_end != candidates.begin() && before <= limit);
  candidates.erase(candidates.begin(), heap_end);
  std::reverse(candidates.begin(), candidates.end());
}

std::int32_t draw(std::span<const Candidate> candidates, double fraction) {
  double target = fraction * sum_weights(candidates);
  double sum = 0;
  std::int32_t token = -1;
  for (const Candidate& candidate : candidates) {
    if (candidate.weight == 0) continue;
    token = candidate.token;
    sum += candidate.weight;
    if (sum > target) break;
  }
  return token;
}

template <class T>
TokenChoice pick(std::span<const T> logits, const SamplingOptions& options,
                 const TokenPlace& place) {
  RowSummary row = summarise(logits);
  if (options.greedy()) return pick_largest(row, place);
  check_row(row, place);
  T least = keep_from(logits, options.top_k);
  std::vector<Candidate> candidates;
  candidates.reserve(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] < least) continue;
    double weight = std::exp((static_cast<double>(logits[i]) - row.largest) / options.temperature);
    candidates.push_back({weight, static_cast<std::int32_t>(i)});
  }
  if (options.top_p < 1) cut_to_probability(candidates, options.top_p);
  std::int32_t token = draw(candidates, random_fraction(options.seed, place));
  auto chosen = static_cast<double>(logits[static_cast<std::size_t>(token)]);
  return {token, (chosen - row.largest) - row.log_sum};
}

}  // namespace

void check_sampling(const SamplingOptions& options) {
  BEV_CHECK(options.temperature >= 0 && std::isfinite(options.temperature), ErrorKind::kConfig,
            "--temperature: ", options.temperature, " is not a number from 0 on");
  BEV_CHECK(options.top_k >= 0, ErrorKind::kConfig, "--top-k: ", options.top_k,
            " is negative; 0 keeps all tokens");
  BEV_CHECK(options.top_p > 0 && options.top_p <= 1, ErrorKind::kConfig, "--top-p: ", options.top_p,
            " is not in (0, 1]; 1 keeps all tokens");
}

TokenChoice pick_largest(const RowSummary& row, const TokenPlace& place) {
  check_row(row, place);
  return {static_cast<std::int32_t>(row.at), -row.log_sum};
}

double random_fraction(std::uint64_t seed, const TokenPlace& place) {
  auto low = [](std::int64_t x) { return static_cast<std::uint32_t>(x); };
  auto high = [](std::int64_t x) {
    return static_cast<std::uint32_t>(static_cast<std::uint64_t>(x) >> 32);
  };
  PhiloxCounter words =
      philox({low(place.position), high(place.position), low(place.sequence), high(place.sequence)},
             mix_bits(seed, hash_name("sampling")));
  std::uint64_t bits = (std::uint64_t{words[0]} << 20) | (words[1] >> 12);
  return (static_cast<double>(bits) + 0.5) * 0x1p-52;
}

TokenChoice pick_drawn(const RowSummary& row, const SampledToken& drawn, const TokenPlace& place) {
  check_row(row, place);
  return {static_cast<std::int32_t>(drawn.token), (drawn.logit - row.largest) - row.log_sum};
}

TokenChoice pick_token(std::span<const float> logits, const SamplingOptions& options,
                       const TokenPlace& place) {
  return pick(logits, options, place);
}

TokenChoice pick_token(std::span<const double> logits, const SamplingOptions& options,
                       const TokenPlace& place) {
  return pick(logits, options, place);
}

}  // namespace bev
