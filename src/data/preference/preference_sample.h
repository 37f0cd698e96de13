// Samples of the objectives over completions: pairs, labelled rows, rollouts. Each completion is a
// document, prompt first; a pair is a sample of two, the chosen one first. The loss weights of a
// sample say which targets belong to completions.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "data/batch.h"
#include "data/sft/json_rows.h"

namespace bev {

// Fields of samples: one number each (f64) ...
inline constexpr FieldId kRefChosenLogp{"ref_chosen_logp"}, kRefRejectedLogp{"ref_rejected_logp"};
inline constexpr FieldId kMargin{"margin"};
inline constexpr FieldId kLabel{"label"};  // 1: desirable
inline constexpr FieldId kAdvantage{"advantage"};
// ... one for each token (f64), where it is a target ...
inline constexpr FieldId kOldLogps{"old_logps"}, kSamplingLogps{"sampling_logps"},
    kRefLogps{"ref_logps"}, kTokenAdvantages{"token_advantages"}, kOldValues{"old_values"},
    kReturns{"returns"};
// ... and a sequence of its own: the prompt with the completion of another row, and its targets.
inline constexpr FieldId kKlTokens{"kl_tokens"}, kKlTargets{"kl_targets"};

struct PreferencePair {
  TokenRow prompt, chosen, rejected;
  std::optional<double> ref_chosen_logp, ref_rejected_logp, margin;
};
// With `scores_prompt` the chosen prompt's tokens are targets too, of weight 0. Tokens beyond the
// first one without a predecessor have no target.
TokenSample pair_sample(const PreferencePair& pair, bool scores_prompt);

struct LabelledRow {
  TokenRow prompt, completion;
  bool desirable = true;
  TokenRow kl_completion;  // empty: set_mismatched() gives one
};
TokenSample row_sample(const LabelledRow& row);
// Pairs the prompt of a row with the completion of another.
void set_mismatched(TokenSample& row, const TokenSample& other);
// The same for the rows of a global batch that have none: each gets the completion of the row
// before it, the first that of the last.
void set_mismatched(std::vector<TokenSample>& batch);

struct Rollout {
  TokenRow prompt, completion;
  double advantage = 0;
  // One number for each token of the completion; empty: all ones, or none.
  std::vector<double> mask = {}, old_logps = {}, sampling_logps = {}, ref_logps = {};
  std::vector<double> token_advantages = {};      // instead of the advantage
  std::vector<double> values = {}, returns = {};  // of a critic
};
TokenSample rollout_sample(const Rollout& rollout);

}  // namespace bev
