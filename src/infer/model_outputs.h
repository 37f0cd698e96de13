// Outputs of a model by the names that Hugging Face gives them: logits, hidden states, and what the
// heads of encoders compute.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/function_ref.h"
#include "data/batch.h"
#include "parallel/rank_model.h"

namespace bev {

// An output of a model.
struct ModelOutput {
  std::string name;
  std::int64_t columns = 0;  // numbers of a row
  bool by_token = true;      // a row for each token, else for each sample
  bool flat = false;         // one number a row, without a dim of its own
};

// The outputs of models of this configuration: logits, last_hidden_state, pooler_output,
// seq_relationship_logits, start_logits, end_logits, as far as it has them.
std::vector<ModelOutput> outputs_of(const ModelConfig& model);

// Computes an output of all samples. World rank 0 receives the rows of each sample, in order: one
// for each of its tokens, or one. Collective.
void compute_output(RankModel& model, const ModelOutput& output,
                    std::span<const TokenSample> samples, std::int64_t micro_batch_size,
                    FunctionRef<void(std::span<const double> rows)> receive);

}  // namespace bev
