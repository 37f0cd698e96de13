#include "infer/beam_search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "base/error.h"

namespace bev {

namespace {

using Row = std::span<const double>;
using Tokens = std::span<const std::int32_t>;

constexpr float kImpossible = -std::numeric_limits<float>::infinity();
// Hugging Face's score of what must not be selected. Added to a score it swallows it, so that such
// scores are equal, and their order is that of top_indices.
constexpr float kLast = -1e9F;

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

double largest_of(Row logits) { return *std::max_element(logits.begin(), logits.end()); }

double log_sum_exp(Row logits) {
  double largest = largest_of(logits), sum = 0;
  for (double logit : logits) sum += std::exp(logit - largest);
  return largest + std::log(sum);
}

// As torch computes it: two subtractions in float32.
void log_softmax(Row logits, double log_sum, std::span<float> out) {
  double largest = largest_of(logits);
  auto shift = static_cast<float>(log_sum - largest), top = static_cast<float>(largest);
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(logits[i]) - top - shift;
}

// The k largest, largest first. The order of equal ones is that of torch.topk on the CPU, whose
// algorithms these are (ATen/native/TopKImpl.h): a heap if k is small, else a quickselect.
std::vector<std::int64_t> top_indices(std::span<const float> values, std::int64_t k) {
  const std::int64_t n = std::ssize(values);
  auto greater = [&](std::int64_t a, std::int64_t b) { return values[at(a)] > values[at(b)]; };
  std::vector<std::int64_t> order(at(k * 64 <= n ? k : n));
  std::iota(order.begin(), order.end(), 0);
  if (k * 64 <= n) {  // std::partial_sort, without a list of all indices
    std::make_heap(order.begin(), order.end(), greater);
    order.push_back(0);
    for (std::int64_t i = k; i < n; ++i) {
      if (!greater(i, order.front())) continue;
      order.back() = i;
      std::pop_heap(order.begin(), order.end(), greater);
    }
    order.pop_back();
    std::sort_heap(order.begin(), order.end(), greater);
  } else {
    std::nth_element(order.begin(), order.begin() + (k - 1), order.end(), greater);
    std::sort(order.begin(), order.begin() + (k - 1), greater);
  }
  order.resize(at(k));
  return order;
}

bool is_in(std::span<const float> row, std::int32_t token) {
  return token >= 0 && token < std::ssize(row);
}

void add_bias(std::span<const LogitEdit> edits, std::span<float> row) {
  for (const LogitEdit& edit : edits) {
    BEV_CHECK(is_in(row, edit.token), ErrorKind::kInput, "--logit-bias: token ", edit.token,
              " is outside of the vocabulary of ", row.size());
    row[at(edit.token)] += edit.bias;
  }
}

// Log-probabilities are below 0 and are multiplied; a bias can lift them above, then they are
// divided.
void penalise_repetition(double repetition_penalty, Tokens history, std::span<float> row) {
  auto penalty = static_cast<float>(repetition_penalty);
  std::vector<bool> seen(row.size());
  for (std::int32_t token : history) {
    if (!is_in(row, token) || seen[at(token)]) continue;
    seen[at(token)] = true;
    float& score = row[at(token)];
    score = score < 0 ? score * penalty : score / penalty;
  }
}

// Forbids the tokens that would repeat an n-gram of `history`.
void block_ngrams(std::int64_t size, Tokens history, std::span<float> row) {
  if (std::ssize(history) < size) return;
  Tokens suffix = history.last(at(size - 1));
  for (std::size_t i = 0; i + at(size) <= history.size(); ++i) {
    std::int32_t next = history[i + suffix.size()];
    if (!is_in(row, next)) continue;
    if (std::equal(suffix.begin(), suffix.end(), history.begin() + static_cast<std::ptrdiff_t>(i)))
      row[at(next)] = kImpossible;
  }
}

void forbid(std::span<const std::int32_t> tokens, std::span<float> row) {
  for (std::int32_t token : tokens) {
    if (is_in(row, token)) row[at(token)] = kImpossible;
  }
}

// Tokens that are not in the list become impossible.
void allow(std::span<const std::int32_t> tokens, std::span<float> row) {
  const std::vector<float> scores(row.begin(), row.end());
  std::ranges::fill(row, kImpossible);
  for (std::int32_t token : tokens) {
    if (is_in(row, token)) row[at(token)] = scores[at(token)];
  }
}

void force(std::int32_t token, std::span<float> row) {
  std::fill(row.begin(), row.end(), kImpossible);
  row[at(token)] = 0;
}

// The logits processors of Hugging Face, in its order.
void process(const BeamSearchArgs& args, Tokens history, std::span<float> row) {
  const SequenceRules& rules = args.rules;
  std::int64_t length = std::ssize(history), generated = length - std::ssize(args.prompt);
  add_bias(args.logit_bias, row);
  if (args.repetition_penalty != 1) penalise_repetition(args.repetition_penalty, history, row);
  if (rules.no_repeat_ngram_size > 0) block_ngrams(rules.no_repeat_ngram_size, history, row);
  if (!rules.banned.empty()) forbid(banned_after(history, rules), row);
  if (!args.allowed_tokens.empty()) allow(args.allowed_tokens, row);
  if (generated < args.min_new_tokens) forbid(args.end_tokens, row);
  if (rules.forced_bos_token >= 0 && length == 1) force(rules.forced_bos_token, row);
  if (rules.forced_eos_token >= 0 && generated == args.max_new_tokens - 1)
    force(rules.forced_eos_token, row);
}

}  // namespace

void check_beams(const BeamOptions& options) {
  BEV_CHECK(options.num_beams >= 1, ErrorKind::kConfig, "--num-beams: ", options.num_beams,
            " is not a number from 1 on");
  BEV_CHECK(options.num_return_sequences >= 1 && options.num_return_sequences <= options.num_beams,
            ErrorKind::kConfig, "--num-return-sequences: ", options.num_return_sequences,
            " is not in 1 to --num-beams ", options.num_beams);
  BEV_CHECK(std::isfinite(options.length_penalty), ErrorKind::kConfig,
            "--length-penalty: ", options.length_penalty, " is not a finite number");
}

BeamSearch::BeamSearch(BeamSearchArgs args) : args_(std::move(args)) {
  const BeamOptions& options = args_.options;
  check_beams(options);
  check_rules(args_.rules, std::numeric_limits<std::int64_t>::max());
  BEV_CHECK(!args_.prompt.empty(), ErrorKind::kInput, "beams: the prompt is empty");
  BEV_CHECK(args_.max_new_tokens >= 1, ErrorKind::kConfig,
            "--max-new-tokens: ", args_.max_new_tokens, " is not a number from 1 on");
  float divisor = length_divisor(args_.max_new_tokens);
  BEV_CHECK(divisor > 0 && std::isfinite(divisor), ErrorKind::kConfig,
            "--length-penalty: ", args_.max_new_tokens, " tokens ^ ", options.length_penalty,
            " is out of range");
  // The prompt is one beam: its copies come last, like what is not finished.
  live_.resize(at(options.num_beams), {.tokens = {}, .logprobs = {}, .score = kLast});
  finished_ = live_;
  live_[0].score = 0;
}

std::vector<BeamSearch::Child> BeamSearch::advance(std::span<const Row> logits) {
  check_rows(logits);
  std::vector<Candidate> candidates = select_candidates(logits);
  keep_finished(candidates);
  std::vector<Child> children = keep_live(candidates);
  ++generated_;
  auto stops = [](const Candidate& candidate) { return candidate.stops; };
  done_ = !can_improve() || std::all_of(candidates.begin(), candidates.end(), stops) ||
          (args_.options.early_stopping == EarlyStopping::kTrue && all_finished());
  if (done_) children.clear();
  for (Child& child : children)
    child.parent = std::min(child.parent, std::ssize(logits) - 1);  // the prompt's beams are one
  return children;
}

std::vector<BeamSearch::Hypothesis> BeamSearch::finish() const {
  std::vector<Beam> beams = finished_;
  if (!done_) {
    for (Beam beam : live_) {
      beam.score /= length_divisor(std::max<std::int64_t>(generated_, 1));
      beams.push_back(std::move(beam));
    }
    auto better = [](const Beam& a, const Beam& b) { return a.score > b.score; };
    std::stable_sort(beams.begin(), beams.end(), better);
  }
  beams.resize(at(args_.options.num_return_sequences));
  std::vector<Hypothesis> best;
  for (const Beam& beam : beams) {
    bool ended = !beam.tokens.empty() && is_end(beam.tokens.back());
    best.push_back({beam.tokens, beam.logprobs, beam.score, ended});
  }
  return best;
}

void BeamSearch::check_rows(std::span<const Row> logits) const {
  const std::int64_t rows = generated_ == 0 ? 1 : args_.options.num_beams;
  BEV_CHECK(!done_, ErrorKind::kInternal, "beams: the search is done");
  BEV_CHECK(std::ssize(logits) == rows, "beams: ", logits.size(), " rows of logits for ", rows,
            " live beams");
  for (Row row : logits) {
    BEV_CHECK(row.size() == logits[0].size() && !row.empty(), "beams: rows of ", logits[0].size(),
              " and ", row.size(), " logits");
  }
  check_rules(args_.rules, std::ssize(logits[0]));
}

// Scores [num_beams, V] of the live beams with each token added.
std::vector<float> BeamSearch::continuation_scores(std::span<const Row> logits,
                                                   std::span<const double> log_sums) const {
  const std::size_t vocabulary = logits[0].size();
  std::vector<float> scores(live_.size() * vocabulary);
  std::vector<std::int32_t> history;
  for (std::size_t i = 0; i < live_.size(); ++i) {
    std::size_t from = std::min(i, logits.size() - 1);
    std::span<float> row = std::span(scores).subspan(i * vocabulary, vocabulary);
    log_softmax(logits[from], log_sums[from], row);
    history = args_.prompt;
    history.insert(history.end(), live_[i].tokens.begin(), live_[i].tokens.end());
    process(args_, history, row);
    for (float& score : row) score += live_[i].score;
  }
  return scores;
}

// So many that num_beams of them continue, even if every beam's best tokens are all end tokens.
std::vector<BeamSearch::Candidate> BeamSearch::select_candidates(
    std::span<const Row> logits) const {
  std::vector<double> log_sums;
  for (Row row : logits) {
    log_sums.push_back(log_sum_exp(row));
    BEV_CHECK(std::isfinite(log_sums.back()), ErrorKind::kNumeric, "beams: the logits of beam ",
              log_sums.size() - 1, " after ", generated_,
              " tokens hold NaN or +Inf, or none of them is finite");
  }
  std::vector<float> scores = continuation_scores(logits, log_sums);
  std::int64_t per_beam = std::max<std::int64_t>(2, 1 + std::ssize(args_.end_tokens));
  std::int64_t wanted = std::min(per_beam * args_.options.num_beams, std::ssize(scores));
  const bool last = generated_ + 1 == args_.max_new_tokens;
  std::vector<Candidate> candidates;
  for (std::int64_t index : top_indices(scores, wanted)) {
    std::int64_t parent = index / std::ssize(logits[0]), token = index % std::ssize(logits[0]);
    std::size_t row = std::min(at(parent), logits.size() - 1);
    auto id = static_cast<std::int32_t>(token);
    candidates.push_back({.parent = parent,
                          .token = id,
                          .logprob = logits[row][at(token)] - log_sums[row],
                          .score = scores[at(index)],
                          .stops = last || is_end(id)});
  }
  return candidates;
}

BeamSearch::Beam BeamSearch::extend(const Candidate& candidate, float score) const {
  Beam beam = live_[at(candidate.parent)];
  beam.tokens.push_back(candidate.token);
  beam.logprobs.push_back(candidate.logprob);
  beam.score = score;
  return beam;
}

// Only the first num_beams candidates can become hypotheses; the others are there to continue.
void BeamSearch::keep_finished(std::span<const Candidate> candidates) {
  const std::int64_t beams = args_.options.num_beams;
  const float divisor = length_divisor(generated_ + 1);
  std::vector<float> scores;
  for (const Beam& beam : finished_) scores.push_back(beam.score);
  auto finishes = [&](std::int64_t i) { return candidates[at(i)].stops && i < beams; };
  for (std::int64_t i = 0; i < std::ssize(candidates); ++i)
    scores.push_back(candidates[at(i)].score / divisor + (finishes(i) ? 0 : kLast));
  std::vector<Beam> kept;
  for (std::int64_t index : top_indices(scores, beams)) {
    if (index < beams) {
      kept.push_back(std::move(finished_[at(index)]));
      continue;
    }
    kept.push_back(extend(candidates[at(index - beams)], scores[at(index)]));
    kept.back().finished = finishes(index - beams);
  }
  finished_ = std::move(kept);
}

std::vector<BeamSearch::Child> BeamSearch::keep_live(std::span<const Candidate> candidates) {
  std::vector<float> scores;
  for (const Candidate& candidate : candidates)
    scores.push_back(candidate.score + (candidate.stops ? kLast : 0));
  std::vector<Beam> kept;
  std::vector<Child> children;
  for (std::int64_t index : top_indices(scores, args_.options.num_beams)) {
    const Candidate& candidate = candidates[at(index)];
    kept.push_back(extend(candidate, scores[at(index)]));
    children.push_back({candidate.parent, candidate.token});
  }
  live_ = std::move(kept);
  return children;
}

// Whether the best live beam may yet beat the worst hypothesis.
bool BeamSearch::can_improve() const {
  const BeamOptions& options = args_.options;
  bool to_the_end = options.early_stopping == EarlyStopping::kNever && options.length_penalty > 0;
  float best = live_[0].score / length_divisor(to_the_end ? args_.max_new_tokens : generated_);
  return best > (all_finished() ? finished_.back().score : kLast);
}

bool BeamSearch::is_end(std::int32_t token) const {
  const std::vector<std::int32_t>& ends = args_.end_tokens;
  return std::find(ends.begin(), ends.end(), token) != ends.end();
}

bool BeamSearch::all_finished() const {
  auto finished = [](const Beam& beam) { return beam.finished; };
  return std::all_of(finished_.begin(), finished_.end(), finished);
}

float BeamSearch::length_divisor(std::int64_t length) const {
  return static_cast<float>(std::pow(static_cast<double>(length), args_.options.length_penalty));
}

}  // namespace bev
