// Batches of pairs, labelled rows and rollouts of token ids in JSON, for `score --objective`.
#pragma once

#include <string>
#include <vector>

#include "data/preference/preference_sample.h"

namespace bev {

// The lists of a batch object. All throw Error(kInput) naming file, entry and member if something
// is unknown, missing, empty, or given by some entries only.
std::vector<PreferencePair> read_pairs(const JsonPlace& batch, std::int64_t vocab_size);
std::vector<LabelledRow> read_labelled_rows(const JsonPlace& batch, std::int64_t vocab_size);

// Rollouts whose advantages are yet to be computed, if rewards are given (NaN: none).
struct RolloutBatch {
  std::vector<Rollout> rollouts;
  std::vector<double> rewards;  // empty: advantages are given
  std::vector<std::int64_t> groups;
};
RolloutBatch read_rollouts(const JsonPlace& batch, std::int64_t vocab_size);

}  // namespace bev
