// Evaluation of a model on sets of samples, the same under every layout.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "parallel/engine.h"
#include "train/config.h"
#include "train/loader.h"

namespace bev {

struct EvalResult {
  std::string split;  // "valid" or "test"
  std::string name;   // of the set; "": all data of the split
  double loss = 0;    // mean over the tokens of the set, or what the objective is a mean over

  // Name in reports: that of the split if the set has none.
  const std::string& title() const { return name.empty() ? split : name; }
};

// Mean of the losses of the sets; NaN if there is none.
double mean_loss(std::span<const EvalResult> results);

// Evaluates the sets one by one. Collective. `stop` is asked after every batch, on every rank, and
// must answer the same on all; nullopt if it was true.
std::optional<std::vector<EvalResult>> evaluate_sets(Engine& engine, const char* split,
                                                     std::span<const EvalSet> sets,
                                                     const EvalBatch& batch, const ReadAhead& ahead,
                                                     FunctionRef<bool()> stop);

}  // namespace bev
