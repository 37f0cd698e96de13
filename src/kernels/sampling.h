// Sampling: selects a token from each row of logits by a rule of its own, without the host.
#pragma once

#include <cstdint>

#include "tensor/logit_edit.h"
#include "tensor/stream.h"
#include "tensor/view.h"

namespace bev {

// How the token of one row is selected. In this order: logit edits are added, and with only_edited
// all other logits become -infinity; penalties change those of tokens seen before; the logits are
// divided by the temperature; top-k keeps those >= the k-th largest; top-p drops tokens before
// which the cumulative probability already exceeds it, most likely first, lowest id first among
// equals; min-p drops those below min_p times the largest probability. The most likely token always
// remains.
struct SamplingRule {
  double temperature = 0;  // 0: greedy, the largest logit, the lowest id among equals
  double top_p = 1;        // in (0, 1]
  double min_p = 0;        // in [0, 1]
  // Logits of tokens in prompt or output are divided by it if above 0, else multiplied.
  double repetition_penalty = 1;
  // Subtracted from the logits of tokens in the output: once, and for each occurrence.
  double presence_penalty = 0, frequency_penalty = 0;
  double fraction = 0.5;                        // uniform random number in (0, 1) of this draw
  std::int32_t top_k = 0;                       // 0: all
  std::int32_t counts_row = -1;                 // of the token counts; -1: no penalties
  std::int32_t edits_begin = 0, edits_end = 0;  // of the list of edits
  std::int32_t forced = -1;                     // if >= 0, this token is selected
  bool only_edited = false;                     // only tokens of the row's edits can be selected

  bool greedy() const { return temperature == 0 || top_k == 1; }
  bool edits_logits() const { return counts_row >= 0 || edits_begin < edits_end || only_edited; }
};

// Token counts [rows, V] i32: how often a token is in the output of a sequence, plus this bit if it
// is in the prompt.
inline constexpr std::int32_t kInPrompt = 1 << 30;

// What became of a row: selected, or its logits hold NaN or +infinity, or none is finite.
enum class SelectStatus : std::int32_t { kSelected = 0, kNotFinite = 1 };

// tokens [t] and status [t] for logits [t, V] in the accumulate type, which are not changed
// (-infinity means impossible). A row that is not finite gets token 0. Equal inputs give equal
// tokens on every backend, up to the rounding of logits; a row never depends on the others.
struct SelectArgs {
  View logits;
  const SamplingRule* rules = nullptr;  // device, [t]
  const LogitEdit* edits = nullptr;     // device
  View counts = {};                     // device, [rows, V] i32; empty: no rule has a counts_row
  std::int32_t* tokens = nullptr;       // device
  std::int32_t* status = nullptr;       // device, SelectStatus
  bool all_greedy = false;              // every rule is greedy and edits nothing; the host knows
};

// The k largest logits of each row, largest first, lowest id first among equals: values [t, k] in
// the dtype of logits, ids [t, k] i32. k <= 1024; past the vocabulary id -1 and -infinity.
struct TopLogitsArgs {
  View logits;
  View values, ids;
};

// For each i < n: last[slots[i]] = tokens[i], and the count of tokens[i] in row
// rules[i].counts_row, if there is one, grows by one. Slots below 0 are skipped.
struct RecordTokensArgs {
  const std::int32_t *tokens = nullptr, *slots = nullptr;
  const SamplingRule* rules = nullptr;
  std::int64_t n = 0;
  std::int32_t* last = nullptr;
  View counts = {};
};

// tokens[i] = last[slots[i]] for each i < n with slots[i] >= 0; the others are left.
struct ResolveTokensArgs {
  std::int32_t* tokens = nullptr;
  const std::int32_t* slots = nullptr;
  std::int64_t n = 0;
  const std::int32_t* last = nullptr;
};

// Row `row` of counts becomes that of a sequence with this prompt and output (device).
struct CountTokensArgs {
  View counts;
  std::int64_t row = 0;
  const std::int32_t *prompt = nullptr, *output = nullptr;
  std::int64_t prompt_tokens = 0, output_tokens = 0;
};

struct SamplingKernels {
  void (*select)(const Stream&, const SelectArgs&);
  void (*top_logits)(const Stream&, const TopLogitsArgs&);
  void (*record)(const Stream&, const RecordTokensArgs&);
  void (*resolve)(const Stream&, const ResolveTokensArgs&);
  void (*count)(const Stream&, const CountTokensArgs&);
};

}  // namespace bev
