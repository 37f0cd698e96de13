#include "app/data_checks.h"

#include "base/error.h"
#include "base/text.h"
#include "data/gpt/split.h"
#include "tokenizer/byte_tokenizer.h"

namespace bev {

namespace {

using Problems = std::vector<std::string>;

void append(Problems& out, const Problems& more) {
  out.insert(out.end(), more.begin(), more.end());
}

void check_split(const std::string& split, Problems& out) {
  constexpr std::int64_t kMany = std::int64_t{1} << 40;
  try {
    if (split_bounds(split, kMany)[1] == 0) {
      out.push_back(concat("--split: '", split, "' leaves nothing for training; try 969,30,1"));
    }
  } catch (const Error& error) {
    out.push_back(concat("--", error.what()));
  }
}

// Checks that every split that the run reads has token files, and that the model can separate
// documents.
void check_token_files(const RunConfig& run, Problems& out) {
  const DataConfig& data = run.data;
  bool at_ends = data.reset_position_ids || data.reset_attention_mask || data.eod_mask_loss;
  const char* flag = data.eod_mask_loss        ? "--eod-mask-loss"
                     : data.reset_position_ids ? "--reset-position-ids"
                                               : "--reset-attention-mask";
  if (!data.has_token_files() && data.text.empty()) {
    if (at_ends) {
      out.push_back(concat(flag, ": is for --text and the token files of --data-path"));
    }
    return;
  }
  // The content of a file is checked when it is read.
  bool in_flags = data.has_own_token_files() && data.per_split_data_args_path.empty();
  if (in_flags && data.train_data_path.empty() && !run.train.eval.skip_train) {
    out.push_back("--train-data-path: is missing; there is nothing to train on");
  }
  if (in_flags && data.valid_data_path.empty() && run.train.eval_interval > 0) {
    out.push_back("--valid-data-path: is missing; give it or leave validation out");
  }
  if (at_ends && data.eod_id < 0 && run.train.hf_model.empty()) {
    out.push_back(concat("--eod-id: is missing; ", flag, " needs the token that ends a document"));
  }
}

void check_preferences(const RunConfig& run, Problems& out) {
  const PreferenceConfig& preferences = run.data.preferences;
  bool rewards = preferences.objective == "reward";
  if (rewards && run.model.num_labels != 1) {
    out.push_back(concat("--objective: reward needs a head of one label, and the model has ",
                         run.model.num_labels, "; give --num-labels 1 or another model"));
  }
  if (!rewards && run.model.num_labels > 0 && !run.model.encoder.encoder) {
    out.push_back(concat("--num-labels: a model with a head of ", run.model.num_labels,
                         " labels predicts no tokens; give --objective reward, or 0"));
  }
  if (run.model.value_head && preferences.objective != "ppo") {
    out.push_back("--value-head: is trained by rl --objective ppo alone; leave it out");
  }
  if (!preferences.any()) return;
  if (run.data.tokenizer.empty() && run.train.hf_model.empty()) {
    out.push_back("--tokenizer: is missing; preferences need it, or --hf-model");
  }
  if (preferences.valid_data.empty() && run.train.eval_interval > 0) {
    out.push_back("--valid-data: is missing; give it or leave validation out");
  }
}

// The head of a model for a task.
LabelKind head_of(TextTask task) {
  return task == TextTask::kTags    ? LabelKind::kTokens
         : task == TextTask::kSpans ? LabelKind::kSpans
                                    : LabelKind::kSequence;
}

void check_labels(const RunConfig& run, Problems& out) {
  const PreferenceConfig& flags = run.data.preferences;
  const TextTask task = *flags.text_task();
  const bool number = task == TextTask::kNumber;
  if (!run.model.encoder.encoder || run.model.encoder.labels != head_of(task) ||
      (number != (run.model.num_labels == 1) && task != TextTask::kTags)) {
    out.push_back(concat("--objective: ", flags.objective,
                         " needs an encoder with a head for it; give --hf-model or --preset of an "
                         "encoder (bert, megatron-bert, roberta, modernbert)"));
  }
  if (run.data.tokenizer.empty() && run.train.hf_model.empty()) {
    out.push_back("--tokenizer: is missing; texts need it, or --hf-model");
  }
  if (flags.valid_data.empty() && run.train.eval_interval > 0) {
    out.push_back("--valid-data: is missing; give it or leave validation out");
  }
}

// Encoders predict no next tokens.
void check_encoder_data(const RunConfig& run, Problems& out) {
  const bool masks = run.data.preferences.masks(), encoder = run.model.encoder.encoder;
  const std::optional<TextTask> task = run.data.preferences.text_task();
  if (task) check_labels(run, out);
  if (encoder && !masks && !task && run.data.batches.empty() && !run.train.dry_run) {
    const std::string& given = run.data.preferences.objective;
    out.push_back(concat(
        "--objective: ",
        given.empty() ? "is missing; the model is an encoder" : given + " is not for encoders",
        "; give mlm with --data-path, classification and its like with --data, or "
        "--batches"));
  }
  if (!masks) return;
  if (!encoder || !run.model.has_output_layer()) {
    out.push_back(
        "--objective: mlm needs an encoder with an output layer; give one by --preset or "
        "--hf-model (bert, megatron-bert, roberta, modernbert)");
  }
  if (!run.data.has_token_files()) {
    out.push_back(
        "--data-path: is missing; --objective mlm reads token files of sentences, which "
        "`bevatron preprocess --split-sentences` makes");
  }
  if (run.data.tokenizer.empty() && run.train.hf_model.empty()) {
    out.push_back("--tokenizer: is missing; masking needs to know its tokens");
  }
  if (run.train.epochs > 0) {
    out.push_back("--epochs: is not for --objective mlm; give --train-iters or --train-samples");
  }
  append(out, run.data.masked.masking.problems());
}

void check_conversations(const RunConfig& run, Problems& out) {
  if (run.data.sft_data.empty()) return;
  if (run.data.tokenizer.empty() && run.train.hf_model.empty()) {
    out.push_back("--tokenizer: is missing; conversations need it, or --hf-model");
  }
  if (run.data.sft_valid_data.empty() && run.train.eval_interval > 0) {
    out.push_back("--sft-valid-data: is missing; give it or leave validation out");
  }
}

}  // namespace

std::int64_t vocabulary(const DataConfig& data) {
  if (data.tokenizer_vocab_size > 0) return data.tokenizer_vocab_size;
  return data.text.empty() ? 0 : ByteTokenizer::kVocabSize;
}

void check_evaluation(const RunConfig& run, Problems& out) {
  const EvalConfig& eval = run.train.eval;
  bool validates = run.train.eval_interval > 0, sets = eval.multiple_validation_sets;
  std::int64_t micro =
      eval.eval_micro_batch_size > 0 ? eval.eval_micro_batch_size : run.batch.micro_batch_size;
  std::int64_t block = micro * run.parallel.batch_ranks(), batch = eval.eval_global_batch_size;
  if (batch == 0 && eval.eval_micro_batch_size > 0) batch = run.batch.global_batch_size;
  if (batch % std::max<std::int64_t>(block, 1) != 0) {
    out.push_back(concat("--eval-global-batch-size: ", batch, " is not divisible by micro batch ",
                         "size ", micro, " x data-parallel size ", run.parallel.batch_ranks(),
                         " = ", block, "; use ", (batch / block + 1) * block,
                         " or another --eval-micro-batch-size"));
  }
  bool own = !run.data.valid_data_path.empty() || !run.data.per_split_data_args_path.empty() ||
             !run.data.sft_valid_data.empty() || !run.data.preferences.valid_data.empty();
  if (sets && !(own && validates)) {
    out.push_back(
        "--multiple-validation-sets: needs validation with files of its own; give --eval-interval, "
        "and --valid-data-path or --sft-valid-data");
  }
  if (!sets && !eval.validation_set_names.empty()) {
    out.push_back("--validation-set-names: needs --multiple-validation-sets");
  }
  std::int64_t saved = run.checkpoint.save_interval;
  if (run.checkpoint.keep_best == 0 || run.checkpoint.save.empty()) return;
  if (!validates || saved == 0 || saved % run.train.eval_interval != 0) {
    out.push_back(concat(
        "--keep-best: every checkpoint must have a validation loss; give --eval-interval, and "
        "--save-interval as a multiple of it (they are ",
        run.train.eval_interval, " and ", saved, ")"));
  }
}

void check_data(const RunConfig& run, Problems& out) {
  append(out, run.data.problems());
  bool none = run.data.text.empty() && !run.data.mock_data && run.data.replay_flag().empty() &&
              !run.data.has_token_files() && run.data.sft_data.empty() &&
              run.data.preferences.data.empty();
  if (none && !run.train.dry_run) {
    out.push_back(
        "--text: there is no data; give text files, --data-path, --sft-data, --mock-data, "
        "--token-batches or --batches");
  }
  std::int64_t tokens = vocabulary(run.data);
  if (run.model.vocab_size > 0 && run.model.vocab_size < tokens) {
    out.push_back(concat("--vocab-size: ", run.model.vocab_size, " is too small for the ", tokens,
                         " tokens of --tokenizer ",
                         run.data.tokenizer.empty() ? "byte" : run.data.tokenizer, "; use ", tokens,
                         " or more"));
  }
  check_token_files(run, out);
  check_conversations(run, out);
  check_preferences(run, out);
  check_encoder_data(run, out);
  check_split(run.data.split_weights(), out);
}

}  // namespace bev
