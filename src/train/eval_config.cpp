#include "train/eval_config.h"

#include "base/fields.h"
#include "train/config.h"

namespace bev {

void EvalConfig::fields(FieldList& list) {
  constexpr double kMost = 1 << 24;
  list.add("full-validation", full_validation,
           "evaluate on whole splits, once through, instead of --eval-iters batches");
  list.add("multiple-validation-sets", multiple_validation_sets,
           "evaluate on each of the files of --valid-data-path (or --sft-valid-data) by itself");
  list.add("validation-set-names", validation_set_names, "names of these sets in reports")
      .defaults_to("the names of the files");
  list.add("eval-global-batch-size", eval_global_batch_size, "samples of a batch of evaluation")
      .min(0)
      .limit(kMost)
      .defaults_to("the last global batch of training");
  list.add("eval-micro-batch-size", eval_micro_batch_size,
           "samples that a rank takes at once in an evaluation")
      .min(0)
      .limit(kMost)
      .defaults_to("--micro-batch-size");
  list.add("start-eval-at-iter", start_eval_at_iter,
           "no validation before this iteration, but for that at the end")
      .min(0)
      .limit(1 << 30);
  list.add("early-stop-patience", early_stop_patience,
           "stop after so many validations in a row without a better loss; 0: never")
      .min(0)
      .limit(kMost);
  list.add("skip-train", skip_train, "train nothing: evaluate on validation and test data");
}

EvalBatch eval_batch(const EvalConfig& eval, const BatchConfig& batch, std::int64_t dp,
                     std::int64_t seq_length) {
  EvalBatch out{eval.eval_global_batch_size, eval.eval_micro_batch_size};
  if (out.micro == 0) out.micro = batch.micro_batch_size;
  if (out.global == 0) {
    BatchSchedule batches(batch.spec(dp, seq_length));
    out.global = batches.at(batches.steps().back().from_samples).running;
  }
  return out;
}

}  // namespace bev
