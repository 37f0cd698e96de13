#include "infer/exact_check.h"

#include <algorithm>
#include <cmath>

#include "infer/generate.h"
#include "infer/token_scores.h"

namespace bev {

namespace {

// One way to run the requests.
struct Trial {
  std::int64_t batch = 1, step_tokens = 0;
  bool prefix_cache = false, warm = false;
};

std::vector<RequestResult> run_trial(RankModel& model, std::span<const Request> requests,
                                     const InferenceOptions& options, const Trial& trial) {
  InferenceOptions limits = options_for(requests, options);
  limits.max_sequences = std::min(limits.max_sequences, trial.batch);
  if (trial.step_tokens > 0) {
    limits.max_step_tokens = std::max(trial.step_tokens, limits.max_sequences);
  }
  limits.prefix_cache = trial.prefix_cache;
  InferenceEngine engine(model, limits);
  std::vector<RequestResult> results = generate(engine, requests);
  return trial.warm ? generate(engine, requests) : results;
}

struct Differences {
  ExactReport report;
  double sum = 0;
  std::int64_t compared = 0;  // log-probabilities

  void add_logprob(double a, double b) {
    double difference = std::fabs(a - b);
    report.max_abs_logprob_diff = std::max(report.max_abs_logprob_diff, difference);
    sum += difference;
    ++compared;
  }
  // Tokens after a different one are different prompts and are counted as different.
  void compare(const SequenceResult& alone, const SequenceResult& other) {
    std::size_t count = std::max(alone.tokens.size(), other.tokens.size());
    report.tokens += static_cast<std::int64_t>(count);
    for (std::size_t i = 0; i < count; ++i) {
      bool same =
          i < alone.tokens.size() && i < other.tokens.size() && alone.tokens[i] == other.tokens[i];
      if (!same) {
        report.different_tokens += static_cast<std::int64_t>(count - i);
        return;
      }
      add_logprob(alone.logprobs[i], other.logprobs[i]);
    }
  }
};

void compare_with_forward(RankModel& model, std::span<const Request> requests,
                          const std::vector<RequestResult>& alone, Differences& differences) {
  std::vector<TokenSample> samples;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    std::vector<std::int32_t> tokens = requests[i].prompt;
    // Other ranks of a layout have no results; rank 0 compares.
    if (!alone[i].sequences.empty()) {
      const std::vector<std::int32_t>& added = alone[i].sequences.front().tokens;
      tokens.insert(tokens.end(), added.begin(), added.end());
    }
    samples.push_back(labelled_sample(tokens, tokens));
  }
  constexpr std::int64_t kMicroBatch = 4;
  const std::vector<std::vector<double>> scores = token_scores(model, samples, kMicroBatch);
  for (std::size_t i = 0; i < scores.size(); ++i) {
    const SequenceResult& result = alone[i].sequences.front();
    for (std::size_t t = 0; t < result.logprobs.size(); ++t) {
      differences.add_logprob(result.logprobs[t], scores[i][requests[i].prompt.size() + t]);
    }
  }
}

}  // namespace

ExactReport check_exact(RankModel& model, std::span<const Request> requests,
                        const InferenceOptions& options) {
  const auto count = std::ssize(requests);
  constexpr std::int64_t kChunk = 16;
  std::vector<Trial> trials = {{.batch = 1, .step_tokens = kChunk, .prefix_cache = false}};
  for (std::int64_t batch : {2, 7, 16, 17, 64, 256}) {
    if (batch < count) trials.push_back({.batch = batch, .prefix_cache = batch % 2 == 0});
  }
  trials.push_back({.batch = count});
  trials.push_back({.batch = count, .step_tokens = kChunk, .prefix_cache = true});
  trials.push_back({.batch = count, .prefix_cache = true, .warm = true});
  Differences differences;
  const std::vector<RequestResult> alone = run_trial(model, requests, options, {});
  for (const Trial& trial : trials) {
    const std::vector<RequestResult> results = run_trial(model, requests, options, trial);
    differences.report.batch_sizes.push_back(trial.batch);
    for (std::size_t i = 0; i < requests.size(); ++i) {
      if (alone[i].sequences.empty()) continue;  // on a rank of another replica
      differences.compare(alone[i].sequences.front(), results[i].sequences.front());
    }
  }
  if (model.mesh().shape().dp == 1) compare_with_forward(model, requests, alone, differences);
  if (differences.compared > 0) {
    differences.report.mean_abs_logprob_diff =
        differences.sum / static_cast<double>(differences.compared);
  }
  return differences.report;
}

}  // namespace bev
