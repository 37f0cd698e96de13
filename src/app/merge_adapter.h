// convert --merge-lora: a folder with the adapter's weights merged, which is written only if it
// computes what model and adapter compute.
#pragma once

#include <string>

#include "bridge/hf_model.h"

namespace bev {

struct MergeOutcome {
  std::int64_t modules = 0;
  double max_abs_logit_diff = 0;

  // Before they are rounded to the dtype of the folder, the weights compute the adapted model's
  // logits.
  bool same() const { return max_abs_logit_diff <= 1e-5; }
};

// Merges the adapter of folder `adapter` into the Hugging Face model `base`. Nothing is written
// unless the outcome is the same.
MergeOutcome merge_adapter(const std::string& base, const std::string& adapter,
                           const ExportTarget& target);

}  // namespace bev
