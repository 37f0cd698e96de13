// How a run is evaluated on validation and test data. Names and meanings are Megatron's where it
// has them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace bev {

class FieldList;
struct BatchConfig;

struct EvalConfig {
  std::int64_t eval_global_batch_size = 0;  // 0: the last one of training
  std::int64_t eval_micro_batch_size = 0;   // 0: that of training
  bool full_validation = false;             // whole splits instead of eval_iters batches
  bool multiple_validation_sets = false;    // each set of validation data by itself
  std::vector<std::string> validation_set_names;
  std::int64_t start_eval_at_iter = 0;  // the first iteration that may be followed by one
  bool skip_train = false;
  std::int64_t early_stop_patience = 0;  // validations; 0: never

  void fields(FieldList& list);
};

// Samples of one batch of an evaluation, and of one micro-batch.
struct EvalBatch {
  std::int64_t global = 0, micro = 0;
};
// Requires valid batch sizes of training.
EvalBatch eval_batch(const EvalConfig& eval, const BatchConfig& batch, std::int64_t dp,
                     std::int64_t seq_length);

}  // namespace bev
