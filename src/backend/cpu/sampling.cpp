// Sampling on the CPU. A row is selected by one thread in the order of kernels/sampling.h, so that
// tokens do not depend on the number of threads.
#include "backend/cpu/sampling.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <limits>
#include <span>

#include "backend/cpu/top_logits.h"
#include "base/divide.h"
#include "base/error.h"
#include "base/thread_pool.h"

namespace bev {

namespace {

constexpr std::int64_t kLine = 64;  // memory of rows begins on cache lines

struct Candidate {
  double weight;  // exp((logit - largest logit) / temperature)
  std::int32_t token;
};

// Heap order: the most likely on top, the lowest id first among equals.
bool less_likely(const Candidate& a, const Candidate& b) {
  return a.weight != b.weight ? a.weight < b.weight : a.token > b.token;
}

// The k-th largest logit (top-k threshold); -infinity if all are kept.
template <class T>
T keep_from(std::span<const T> logits, std::int64_t top_k, T* spare) {
  const auto k = static_cast<std::size_t>(top_k);
  if (k == 0 || k >= logits.size()) return -std::numeric_limits<T>::infinity();
  std::copy(logits.begin(), logits.end(), spare);
  std::nth_element(spare, spare + k - 1, spare + logits.size(), std::greater<T>());
  return spare[k - 1];
}

double sum_weights(std::span<const Candidate> candidates) {
  double sum = 0;
  for (const Candidate& candidate : candidates) sum += candidate.weight;
  return sum;
}

// top-p: returns the candidates that remain, most likely first. A heap extracts only those.
std::span<Candidate> cut_to_probability(std::span<Candidate> candidates, double top_p) {
  const double limit = top_p * sum_weights(candidates);
  std::make_heap(candidates.begin(), candidates.end(), less_likely);
  auto heap_end = candidates.end();
  double before = 0;
  do {
    std::pop_heap(candidates.begin(), heap_end, less_likely);
    before += (--heap_end)->weight;
  } while (heap_end != candidates.begin() && before <= limit);
  std::reverse(heap_end, candidates.end());
  return {heap_end, candidates.end()};
}

// min-p: the largest weight is 1. Keeps the order of the others.
std::span<Candidate> cut_to_share(std::span<Candidate> candidates, double min_p) {
  const auto unlikely = [&](const Candidate& candidate) { return candidate.weight < min_p; };
  return {candidates.begin(), std::remove_if(candidates.begin(), candidates.end(), unlikely)};
}

std::int32_t draw(std::span<const Candidate> candidates, double fraction) {
  const double target = fraction * sum_weights(candidates);
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

// Memory of a thread.
template <class T>
struct RowMemory {
  T *logits, *spare;
  Candidate* candidates;

  static std::int64_t bytes_of(std::int64_t bytes) { return ceil_div(bytes, kLine) * kLine; }
  static std::int64_t bytes(std::int64_t columns) {
    return 2 * bytes_of(columns * std::int64_t{sizeof(T)}) +
           bytes_of(columns * std::int64_t{sizeof(Candidate)});
  }
  RowMemory(std::byte* memory, std::int64_t columns) {
    const std::int64_t row = bytes_of(columns * std::int64_t{sizeof(T)});
    logits = reinterpret_cast<T*>(memory);
    spare = reinterpret_cast<T*>(memory + row);
    candidates = reinterpret_cast<Candidate*>(memory + 2 * row);
  }
};

// Temperature, top-k, top-p, min-p, and the draw.
template <class T>
std::int32_t sample(std::span<const T> logits, T largest, const SamplingRule& rule,
                    const RowMemory<T>& memory) {
  const T least = keep_from(logits, rule.top_k, memory.spare);
  std::size_t count = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] < least || logits[i] == -std::numeric_limits<T>::infinity()) continue;
    const double below = static_cast<double>(logits[i]) - static_cast<double>(largest);
    memory.candidates[count++] = {std::exp(below / rule.temperature), static_cast<std::int32_t>(i)};
  }
  std::span<Candidate> candidates(memory.candidates, count);
  if (rule.top_p < 1) candidates = cut_to_probability(candidates, rule.top_p);
  if (rule.min_p > 0) candidates = cut_to_share(candidates, rule.min_p);
  return draw(candidates, rule.fraction);
}

// Penalties as in Hugging Face (repetition) and vLLM (frequency, presence).
template <class T>
T penalised(T logit, std::int32_t count, const SamplingRule& rule) {
  const std::int32_t in_output = count & (kInPrompt - 1);
  if (count != 0 && rule.repetition_penalty != 1) {
    const T penalty = static_cast<T>(rule.repetition_penalty);
    logit = logit > 0 ? logit / penalty : logit * penalty;
  }
  if (in_output > 0) {
    logit -= static_cast<T>(rule.frequency_penalty) * static_cast<T>(in_output);
    logit -= static_cast<T>(rule.presence_penalty);
  }
  return logit;
}

// Writes the row with its edits and penalties to `to`.
template <class T>
void edit_row(const SelectArgs& args, const SamplingRule& rule, std::span<const T> logits, T* to) {
  const std::span edits(args.edits + rule.edits_begin, args.edits + rule.edits_end);
  if (rule.only_edited) {
    std::fill_n(to, logits.size(), -std::numeric_limits<T>::infinity());
    for (const LogitEdit& edit : edits) {
      to[edit.token] = logits[static_cast<std::size_t>(edit.token)];
    }
  } else {
    std::copy(logits.begin(), logits.end(), to);
  }
  for (const LogitEdit& edit : edits) to[edit.token] += static_cast<T>(edit.bias);
  if (rule.counts_row < 0) return;
  const std::int32_t* counts =
      args.counts.as<std::int32_t>() + rule.counts_row * args.counts.shape[1];
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (counts[i] != 0) to[i] = penalised(to[i], counts[i], rule);
  }
}

struct Selected {
  std::int32_t token = 0;
  SelectStatus status = SelectStatus::kNotFinite;
};

template <class T>
Selected select_row(const SelectArgs& args, const SamplingRule& rule, std::span<const T> logits,
                    const RowMemory<T>& memory) {
  RowMaximum<T> row = row_maximum(logits);
  if (!row.finite) return {};
  if (rule.forced >= 0) return {rule.forced, SelectStatus::kSelected};
  if (rule.edits_logits()) {
    edit_row(args, rule, logits, memory.logits);
    logits = {memory.logits, logits.size()};
    row = row_maximum(logits);
    if (!row.finite) return {};
  }
  if (rule.greedy()) {
    const auto at = std::find(logits.begin(), logits.end(), row.largest);
    return {static_cast<std::int32_t>(at - logits.begin()), SelectStatus::kSelected};
  }
  return {sample(logits, row.largest, rule, memory), SelectStatus::kSelected};
}

template <class T>
void select_rows(const Stream& stream, const SelectArgs& args) {
  const std::int64_t rows = args.logits.shape[0], columns = args.logits.shape[1];
  const std::int64_t lanes = std::min<std::int64_t>(stream.pool->threads(), rows);
  const std::int64_t bytes = args.all_greedy ? 0 : RowMemory<T>::bytes(columns);
  std::byte* memory = stream.pool->scratch(static_cast<std::size_t>(lanes * bytes));
  std::atomic<std::int64_t> next = 0;
  // Each lane has its own memory, whichever thread it runs on.
  stream.pool->run(lanes, [&](std::int64_t lane) {
    const RowMemory<T> own(memory + lane * bytes, columns);
    for (std::int64_t row = next.fetch_add(1); row < rows; row = next.fetch_add(1)) {
      const std::span<const T> logits(args.logits.as<T>() + row * columns,
                                      static_cast<std::size_t>(columns));
      const Selected selected = select_row(args, args.rules[row], logits, own);
      args.tokens[row] = selected.token;
      args.status[row] = static_cast<std::int32_t>(selected.status);
    }
  });
}

void select(const Stream& stream, const SelectArgs& args) {
  check_logits("select", args.logits);
  BEV_CHECK(
      args.counts.empty() || (args.counts.dtype == Dtype::kI32 && args.counts.shape.ndim() == 2 &&
                              args.counts.shape[1] >= args.logits.shape[1]),
      ErrorKind::kInternal, "select: token counts ", args.counts.shape, " of logits ",
      args.logits.shape);
  if (args.logits.dtype == Dtype::kF64) return select_rows<double>(stream, args);
  select_rows<float>(stream, args);
}

void record(const Stream&, const RecordTokensArgs& args) {
  for (std::int64_t i = 0; i < args.n; ++i) {
    if (args.slots[i] < 0) continue;
    args.last[args.slots[i]] = args.tokens[i];
    if (args.counts.empty() || args.rules[i].counts_row < 0) continue;
    ++args.counts
          .as<std::int32_t>()[args.rules[i].counts_row * args.counts.shape[1] + args.tokens[i]];
  }
}

void resolve(const Stream&, const ResolveTokensArgs& args) {
  for (std::int64_t i = 0; i < args.n; ++i) {
    if (args.slots[i] >= 0) args.tokens[i] = args.last[args.slots[i]];
  }
}

void count(const Stream&, const CountTokensArgs& args) {
  const std::int64_t columns = args.counts.shape[1];
  std::int32_t* row = args.counts.as<std::int32_t>() + args.row * columns;
  std::fill_n(row, columns, 0);
  for (std::int64_t i = 0; i < args.prompt_tokens; ++i) row[args.prompt[i]] |= kInPrompt;
  for (std::int64_t i = 0; i < args.output_tokens; ++i) ++row[args.output[i]];
}

}  // namespace

SamplingKernels cpu_sampling_kernels() {
  return {.select = select,
          .top_logits = top_logits,
          .record = record,
          .resolve = resolve,
          .count = count};
}

}  // namespace bev
