// Configuration of a training run: batch, data, precision, device, length, logging, profiling.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/preprocess/too_long.h"
#include "data/sample_order.h"
#include "optim/lr_schedule.h"
#include "tensor/dtype.h"
#include "tokenizer/tiktoken_options.h"
#include "train/batch_schedule.h"
#include "train/eval_config.h"
#include "train/label_config.h"
#include "train/masked_config.h"
#include "train/preference_config.h"

namespace bev {

class FieldList;
struct OptimConfig;

struct BatchConfig {
  std::int64_t micro_batch_size = 1;
  std::int64_t global_batch_size = 0;    // 0: micro batch times data parallel size
  std::string step_batch_size_schedule;  // see BatchSpec; excludes the other two
  // start, increment, samples; up to global_batch_size
  std::vector<std::int64_t> rampup_batch_size;
  bool decrease_batch_size_if_needed = false;
  // Rows of each batch of a replay, read from its file: not a flag.
  std::vector<std::int64_t> replay;

  void fields(FieldList& list);
  // Sets the global batch size, unless a step schedule or a replay does.
  void resolve(std::int64_t data_parallel_size);
  BatchSpec spec(std::int64_t data_parallel_size, std::int64_t seq_length) const;
};

// Fill-in-the-middle (FIM). Tokens are given by their text in the vocabulary.
struct FimFlags {
  bool fim_data = false;
  double fim_rate = 0.5, fim_spm_rate = 0.5, fim_fragment_rate = -1;  // < 0: not given
  std::string fim_split_sample, fim_no_prefix;
  std::string fim_prefix_token, fim_middle_token, fim_suffix_token, fim_pad_token, fim_eod_token;

  void fields(FieldList& list);
  std::vector<std::string> problems() const;
};

struct DataConfig {
  std::vector<std::string> text;  // files to tokenize first; see text_data.h
  std::string text_key = "text";  // of objects of JSON and rows of Parquet
  std::string tokenizer;
  TiktokenOptions tiktoken;
  std::string vocab_file, merge_file;     // files of GPT-2, or BERT's alone
  std::int64_t tokenizer_vocab_size = 0;  // 0: unknown; not a flag
  bool mock_data = false;
  std::string token_batches;    // JSON file with one list of rows per global batch
  std::string batches;          // JSON file with one object of fields per global batch
  std::int64_t seq_length = 0;  // 0: the longest of the model, at most 4096; 1024 without one
  std::string split;            // "": 969,30,1
  // Megatron's token files: prefixes, or weights and prefixes; shared by the splits (as words or in
  // a file), or separate per split.
  std::vector<std::string> data_path, train_data_path, valid_data_path, test_data_path;
  std::string data_args_path, per_split_data_args_path;
  std::string data_cache_path;
  bool reset_position_ids = false;
  bool reset_attention_mask = false;
  bool eod_mask_loss = false;
  std::int64_t eod_id = -1;  // < 0: the tokenizer's
  std::int64_t pad_id = -1;  // < 0: none
  FimFlags fim;
  // SFT data: conversations as JSON lines, with the chat template of the tokenizer or another one.
  std::vector<std::string> sft_data, sft_valid_data;
  std::string chat_template;
  TooLong sft_too_long = TooLong::kCut;
  PreferenceConfig preferences;
  MaskedConfig masked;
  LabelConfig labels;

  void fields(FieldList& list);
  std::string split_weights() const;
  // True if there are token files; true if they are given per split.
  bool has_token_files() const;
  bool has_own_token_files() const;
  // Flag that names the batches of a replay; "": no replay.
  std::string replay_flag() const;
  std::vector<std::string> problems() const;
};

// How samples are distributed to the ranks and read.
struct LoaderConfig {
  OrderKind dataloader_type = OrderKind::kSingle;
  bool data_sharding = true;
  std::int64_t num_workers = 1;
  std::int64_t prefetch_factor = 2;
  std::int64_t consumed_train_samples = 0;  // where the data starts

  void fields(FieldList& list);
};

struct PrecisionConfig {
  bool bf16 = false;
  bool fp16 = false;
  bool fp64 = false;

  void fields(FieldList& list);
  Dtype model_dtype() const;
  std::vector<std::string> problems() const;
};

enum class CudaGraphs : std::uint8_t { kNone, kLocal };
enum class DeviceKind : std::uint8_t { kAuto, kCpu, kCuda };

// Device and threads, for any command.
struct RuntimeConfig {
  DeviceKind device = DeviceKind::kAuto;
  std::int64_t num_threads = 0;  // 0: all cores, divided among the thread ranks
  std::int64_t seed = 1234;
  bool deterministic_mode = false;
  bool exact = false;  // kernels whose results for a token do not depend on its batch
  CudaGraphs cuda_graph_impl = CudaGraphs::kLocal;
  std::int64_t limit_arch = 0;    // 0: none
  std::string kernel_cache_path;  // "": in the user's cache folder; "none": nowhere

  void fields(FieldList& list);
};

enum class NanPolicy : std::uint8_t { kStop, kSkip };
enum class ExitSignal : std::uint8_t { kTerm, kInt, kHup, kUsr1, kUsr2 };

struct TrainConfig {
  std::string preset;                   // named model; flags override it
  std::string hf_model;                 // folder with config, weights and tokenizer
  std::string export_hf;                // folder for the trained model
  std::string adapter, export_adapter;  // folders of adapters in peft's format
  std::int64_t train_iters = 0;
  std::int64_t train_samples = 0;
  double epochs = 0;  // passes over the data, from which train_iters follows; 0: not given
  double exit_duration_in_mins = 0.0;  // 0: no limit
  std::int64_t exit_interval = 0;      // 0: none
  ExitSignal exit_signal = ExitSignal::kTerm;
  int exit_signal_number() const;
  std::int64_t eval_interval = 0;  // 0: no validation
  std::int64_t eval_iters = -1;    // < 0: 100 when there is an interval
  EvalConfig eval;
  NanPolicy nan_policy = NanPolicy::kStop;
  std::int64_t max_consecutive_skips = 10;  // 0: no limit
  bool check_for_nan_in_loss_and_grad = true;
  bool check_for_spiky_loss = false, check_for_large_grads = false;
  std::vector<std::int64_t> iterations_to_skip = {};
  std::int64_t check_weight_hash_interval = 0;  // 0: never
  // Iterations between files of tensors in the folder of checkpoints; 0: none.
  std::int64_t save_activations_interval = 0, save_dgrads_interval = 0, save_wgrads_interval = 0;
  bool dry_run = false;
  bool json = false;

  void fields(FieldList& list);
  // Sets defaults of the validation pair; `tests`: there are files for a test only. Returns
  // inconsistencies.
  std::vector<std::string> resolve(bool tests = false);
};

struct LogConfig {
  std::int64_t log_interval = 10;
  bool log_throughput = false;
  bool log_params_norm = false, log_num_zeros_in_grad = false;
  std::int64_t log_memory_interval = 0;  // 0: never
  bool log_progress = false;             // a line for each checkpoint in progress.txt
  bool progress = true;                  // live line on a terminal
  std::string metrics_out;
  std::string tensorboard_dir;
  std::int64_t tensorboard_log_interval = 1;
  std::string loss_svg = "loss.svg";  // "": none

  void fields(FieldList& list);
};

// Profiling: a trace of a few iterations.
struct ProfileConfig {
  std::string profile_trace;             // "": none
  std::int64_t profile_step_start = 10;  // iterations before the first traced one
  std::int64_t profile_step_end = 12;    // last traced iteration

  void fields(FieldList& list);
  std::vector<std::string> problems(const TrainConfig& train) const;
};

// Schedules of a resolved configuration in samples, like Megatron; iterations are converted to the
// samples that they consume.
LrSchedule lr_schedule(const OptimConfig& optim, const BatchSchedule& batches);
WeightDecaySchedule weight_decay_schedule(const OptimConfig& optim, const TrainConfig& train,
                                          const BatchSchedule& batches);

}  // namespace bev
