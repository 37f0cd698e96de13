// The reference of preference losses, or the teacher of a distillation: a second, frozen model on
// the ranks of the one that trains.
#pragma once

#include <memory>
#include <string>

#include "parallel/rank_model.h"

namespace bev {

// Loads the Hugging Face model of `folder` with layout and precision of the policy, which must
// outlive it; its size may be another. Its logits are multiplied by the factor. Collective. Throws
// Error(kInput) naming the flag if it has another vocabulary.
std::unique_ptr<RankModel> open_reference(RankModel& policy, const std::string& folder,
                                          const char* flag = "--ref-model",
                                          double logit_factor = 1);

}  // namespace bev
