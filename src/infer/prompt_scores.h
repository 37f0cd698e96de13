// Log-probabilities of the tokens of a prompt.
#pragma once

#include <memory>
#include <vector>

#include "infer/scheduler.h"
#include "parallel/rank_model.h"

namespace bev {

struct PromptScores {
  std::shared_ptr<ActiveRequest> request;  // the run's sequence may be gone when they come
  std::vector<double> logprobs = {};
  std::vector<std::vector<TopLogprob>> top = {};  // empty: not asked for
};

// Scores the prompt tokens that follow those of a run; `hidden` are its rows after the last layer.
// On ranks of the last stage; collective over tp.
PromptScores score_prompt(RankModel& model, const Var& hidden, const ScheduledRun& run);

}  // namespace bev
