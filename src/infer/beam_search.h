// Beam search with the rules of Hugging Face transformers 5 (_beam_search in generation/utils.py),
// its float32 arithmetic and its order of equal scores. Pure host code: the caller computes logits
// and keeps the sequences of the live beams.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "infer/sampler.h"

namespace bev {

// When a search with num_beams finished hypotheses stops.
enum class EarlyStopping : std::uint8_t {
  kFalse,  // once the best live beam, at its present length, scores no better than the worst of
           // them
  kTrue,   // at once
  kNever,  // as kFalse; but at full length, if the length penalty is above 0
};

struct BeamOptions {
  std::int64_t num_beams = 1;
  std::int64_t num_return_sequences = 1;  // <= num_beams
  double length_penalty = 1;  // scores are sums of log-probabilities / generated length ^ this
  EarlyStopping early_stopping = EarlyStopping::kFalse;
};
// Throws Error(kConfig) for values out of range.
void check_beams(const BeamOptions& options);

struct BeamSearchArgs {
  BeamOptions options;
  SequenceRules rules = {};
  std::vector<std::int32_t> prompt;      // at least one token
  std::vector<std::int32_t> end_tokens;  // any of them ends its hypothesis
  std::int64_t max_new_tokens = 64;
  std::int64_t min_new_tokens = 0;  // before that, end tokens are impossible
  // These act on log-probabilities, as in Hugging Face's beam search: first biases are added, then
  // those of tokens in prompt or output are multiplied by the penalty.
  std::vector<LogitEdit> logit_bias = {};
  std::vector<std::int32_t> allowed_tokens = {};  // empty: all
  double repetition_penalty = 1;
};

// The search for one prompt.
class BeamSearch {
 public:
  // A live beam of the next step: it continues the `parent`-th of this step with `token`.
  struct Child {
    std::int64_t parent = 0;
    std::int32_t token = -1;
    friend bool operator==(const Child&, const Child&) = default;
  };

  // If possible continuations run out, the last ones may be unfinished or empty, with a score near
  // -1e9.
  struct Hypothesis {
    std::vector<std::int32_t> tokens;  // generated ones, with the end token
    std::vector<double> logprobs;      // of each, by log-softmax of the unmodified logits
    double score = 0;                  // sequences_scores of Hugging Face
    bool ended = false;                // its last token is an end token
  };

  // Throws Error(kConfig) for options out of range.
  explicit BeamSearch(BeamSearchArgs args);

  // Takes the unmodified logits [V] of each live beam: at the first call one row, the prompt's,
  // then those of the last call's children in their order. Returns the num_beams live beams of the
  // next step, several of which may have one parent; empty when the search is done. Throws
  // Error(kNumeric) for a row with NaN or +infinity, or without a finite number.
  std::vector<Child> advance(std::span<const std::span<const double>> logits);

  // The best num_return_sequences hypotheses, best first. Before the search is done, live beams
  // count as if they ended here.
  std::vector<Hypothesis> finish() const;

 private:
  struct Beam {
    std::vector<std::int32_t> tokens;  // generated ones
    std::vector<double> logprobs;
    float score = 0;  // live: sum of processed log-probabilities; else with the length penalty
    bool finished = false;
  };
  struct Candidate {
    std::int64_t parent = 0;
    std::int32_t token = -1;
    double logprob = 0;
    float score = 0;     // of the sequence that ends in it
    bool stops = false;  // by an end token or the length
  };

  void check_rows(std::span<const std::span<const double>> logits) const;
  std::vector<float> continuation_scores(std::span<const std::span<const double>> logits,
                                         std::span<const double> log_sums) const;
  std::vector<Candidate> select_candidates(std::span<const std::span<const double>> logits) const;
  Beam extend(const Candidate& candidate, float score) const;
  void keep_finished(std::span<const Candidate> candidates);
  std::vector<Child> keep_live(std::span<const Candidate> candidates);
  bool can_improve() const;
  bool is_end(std::int32_t token) const;
  bool all_finished() const;
  float length_divisor(std::int64_t length) const;

  BeamSearchArgs args_;
  std::int64_t generated_ = 0;  // tokens of each live beam
  bool done_ = false;
  std::vector<Beam> live_, finished_;  // num_beams each, best first
};

}  // namespace bev
