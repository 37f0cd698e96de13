#include "train/config.h"

#include <csignal>

#include "base/error.h"
#include "base/fields.h"
#include "base/text.h"
#include "optim/config.h"

namespace bev {

namespace {

constexpr double kMaxIters = 1 << 30;
constexpr double kMaxBatch = 1 << 24;
constexpr double kMaxSamples = 1LL << 38;
constexpr double kMostTokenId = 2147483647;

// Scripts that keep their words in arrays pass quotes on.
std::string unquoted(std::string_view text) {
  bool quoted = text.size() >= 2 && text.front() == text.back() &&
                (text.front() == '\'' || text.front() == '"');
  return std::string(quoted ? text.substr(1, text.size() - 2) : text);
}

double samples_of(std::int64_t samples, std::int64_t iters, const BatchSchedule& batches) {
  return static_cast<double>(samples > 0 ? samples : batches.samples_after(iters));
}

}  // namespace

void BatchConfig::fields(FieldList& list) {
  list.section("batch");
  list.add("micro-batch-size", micro_batch_size, "samples a rank takes at once")
      .min(1)
      .limit(kMaxBatch);
  list.add("global-batch-size", global_batch_size, "samples of one optimizer step")
      .min(0)
      .limit(kMaxBatch)
      .defaults_to("micro-batch-size x dp");
  list.add(
      "step-batch-size-schedule", step_batch_size_schedule,
      "batch size by consumed tokens, \"0:768 250B:1536\"; --global-batch-size is left out or the "
      "last of them");
  list.add("rampup-batch-size", rampup_batch_size,
           "start, increment, samples: grow to --global-batch-size over so many samples")
      .min(0)
      .limit(1LL << 38);
  list.add("decrease-batch-size-if-needed", decrease_batch_size_if_needed,
           "round the global batch down to a multiple of micro-batch-size x dp");
}

void BatchConfig::resolve(std::int64_t data_parallel_size) {
  if (global_batch_size > 0 || !step_batch_size_schedule.empty() || !replay.empty()) return;
  global_batch_size = micro_batch_size * data_parallel_size;
}

BatchSpec BatchConfig::spec(std::int64_t data_parallel_size, std::int64_t seq_length) const {
  return {.micro_batch_size = micro_batch_size,
          .data_parallel_size = data_parallel_size,
          .global_batch_size = global_batch_size,
          .step_schedule = step_batch_size_schedule,
          .seq_length = seq_length,
          .rampup = rampup_batch_size,
          .decrease_if_needed = decrease_batch_size_if_needed,
          .replay = replay};
}

void DataConfig::fields(FieldList& list) {
  list.section("data");
  list.add(
      "text", text,
      "files or folders of text, JSON (lines or arrays of objects) or Parquet, made into token "
      "files first, kept in --data-cache-path; hidden and binary files of folders are left out");
  list.add("text-key", text_key, "key of --text in an object of JSON, or column of Parquet");
  list.add("tokenizer", tokenizer,
           "tokenizer.json, tokenizer.model, vocab.txt, a rank file or a folder with one of them; "
           "gives --vocab-size and --eod-id, and goes into the exported model")
      .alias("tokenizer-model")
      .defaults_to("that of --hf-model; for --text bytes (256 tokens)");
  list.add("vocab-file", vocab_file,
           "instead of --tokenizer: GPT-2's vocabulary, with --merge-file, or BERT's vocab.txt");
  list.add("merge-file", merge_file, "GPT-2's merges, which go with --vocab-file");
  tiktoken.fields(list);
  list.add("mock-data", mock_data, "made-up tokens, for trying a configuration");
  list.add("token-batches", token_batches,
           "JSON file {\"batches\": [[[ids], ...], ...]}, one entry a global batch of any size, in "
           "order");
  list.add(
      "batches", batches,
      "JSON file {\"batches\": [{\"input_ids\": [[ids], ...], \"labels\": ..., "
      "\"attention_mask\": ...}, ...]}, one entry a global batch of any size, in order; a field "
      "that the model does not use is an error");
  list.add("seq-length", seq_length, "tokens of one sample")
      .min(0)
      .limit(kMaxBatch)
      .alias("encoder-seq-length")
      .defaults_to("max-position-embeddings, at most 4096; else 1024");
  list.add("split", split, "shares of training, validation and test")
      .defaults_to("969,30,1")
      .reads([](std::string_view value, std::string&) { return unquoted(value); });
  list.add("data-path", data_path,
           "token files of all splits: prefixes of .bin and .idx, or weights and prefixes in turn");
  list.add("train-data-path", train_data_path, "token files of training only, given likewise");
  list.add("valid-data-path", valid_data_path, "token files of validation only");
  list.add("test-data-path", test_data_path, "token files of the test only, which ends the run");
  list.add("data-args-path", data_args_path, "file with the words of --data-path");
  list.add("per-split-data-args-path", per_split_data_args_path,
           "JSON file {\"train\": [words], \"valid\": [words], \"test\": [words]}, for each split "
           "those of its own flag");
  list.add(
          "data-cache-path", data_cache_path,
          "folder that keeps the order of samples and tokenized text, shared by processes and runs")
      .defaults_to("cache in --save; else bevatron_cache in the current folder, for --text");
  list.add("reset-position-ids", reset_position_ids, "positions start again in every document");
  list.add("reset-attention-mask", reset_attention_mask, "tokens attend within their document");
  list.shorthand("dataloader-inter-document-masking",
                 {{"reset-attention-mask", "true"}, {"reset-position-ids", "true"}},
                 "--reset-attention-mask --reset-position-ids");
  list.add("eod-mask-loss", eod_mask_loss, "no loss on what follows an end of document");
  list.add("eod-id", eod_id, "token that ends a document")
      .min(-1)
      .limit(kMostTokenId)
      .alias("null-tokenizer-eod-id")
      .defaults_to("the tokenizer's");
  list.add("pad-id", pad_id, "token of padding, which has no loss; -1: there is none")
      .min(-1)
      .limit(kMostTokenId)
      .alias("null-tokenizer-pad-id");
  fim.fields(list);
  list.add("sft-data", sft_data,
           "JSON lines, JSON arrays or Parquet with conversations (messages, conversations, prompt "
           "and response or instruction and output), packed; the loss is on what the assistant "
           "says");
  list.add("sft-valid-data", sft_valid_data, "the same, for validation");
  list.add("chat-template", chat_template,
           "file with the chat template of --sft-data, or the name of one of several")
      .defaults_to("the tokenizer's");
  list.add("sft-too-long", sft_too_long, {{"cut", TooLong::kCut}, {"drop", TooLong::kDrop}},
           "what to do with conversations longer than --seq-length");
  preferences.fields(list);
  masked.fields(list);
  labels.fields(list);
}

void FimFlags::fields(FieldList& list) {
  list.add("fim-data", fim_data, "fill-in-the-middle: put the middle of documents last");
  list.add("fim-rate", fim_rate, "share of documents that are changed").min(0).max(1);
  list.add("fim-spm-rate", fim_spm_rate, "share of those that have the suffix first").min(0).max(1);
  list.add("fim-split-sample", fim_split_sample,
           "token between the fragments of a document, which are changed one by one");
  list.add("fim-fragment-rate", fim_fragment_rate, "share of fragments that are changed")
      .max(1)
      .defaults_to("needed with --fim-split-sample");
  list.add("fim-no-prefix", fim_no_prefix, "leave texts as they are that begin with this");
  list.add("fim-prefix-token", fim_prefix_token, "token before the prefix");
  list.add("fim-middle-token", fim_middle_token, "token before the middle");
  list.add("fim-suffix-token", fim_suffix_token, "token before the suffix");
  list.add("fim-pad-token", fim_pad_token, "token that fills up samples that became shorter");
  list.add("fim-eod-token", fim_eod_token, "token that ends a document");
}

std::vector<std::string> FimFlags::problems() const {
  std::vector<std::string> out;
  if (!fim_data) {
    const FimFlags unset;
    bool rates = fim_rate != unset.fim_rate || fim_spm_rate != unset.fim_spm_rate;
    bool tokens = !concat(fim_prefix_token, fim_middle_token, fim_suffix_token).empty();
    if (rates || tokens) {
      out.push_back("--fim-data: is missing; without it the other --fim flags do nothing");
    }
    return out;
  }
  auto need = [&](const std::string& token, const char* flag) {
    if (token.empty()) out.push_back(concat(flag, ": is missing; --fim-data needs the token"));
  };
  need(fim_prefix_token, "--fim-prefix-token");
  need(fim_middle_token, "--fim-middle-token");
  need(fim_suffix_token, "--fim-suffix-token");
  need(fim_pad_token, "--fim-pad-token");
  need(fim_eod_token, "--fim-eod-token");
  if (!fim_split_sample.empty() && fim_fragment_rate < 0) {
    out.push_back("--fim-fragment-rate: is missing; --fim-split-sample needs a rate from 0 to 1");
  }
  return out;
}

std::string DataConfig::split_weights() const { return split.empty() ? "969,30,1" : split; }

bool DataConfig::has_own_token_files() const {
  return !(train_data_path.empty() && valid_data_path.empty() && test_data_path.empty() &&
           per_split_data_args_path.empty());
}

bool DataConfig::has_token_files() const {
  return !data_path.empty() || !data_args_path.empty() || has_own_token_files();
}

std::string DataConfig::replay_flag() const {
  return !token_batches.empty() ? "--token-batches" : !batches.empty() ? "--batches" : "";
}

std::vector<std::string> DataConfig::problems() const {
  std::vector<std::string> shared, own, sources, out;
  if (!data_path.empty()) shared.push_back("--data-path");
  if (!data_args_path.empty()) shared.push_back("--data-args-path");
  if (!per_split_data_args_path.empty()) own.push_back("--per-split-data-args-path");
  std::size_t in_files = own.size();
  if (!train_data_path.empty()) own.push_back("--train-data-path");
  if (!valid_data_path.empty()) own.push_back("--valid-data-path");
  if (!test_data_path.empty()) own.push_back("--test-data-path");
  if (shared.size() > 1 || (!shared.empty() && !own.empty())) {
    std::vector<std::string> others(shared.begin() + 1, shared.end());
    others.insert(others.end(), own.begin(), own.end());
    out.push_back(concat(shared[0], ": excludes ", join(others, " and "),
                         "; data is shared by the splits or given for each"));
  } else if (in_files > 0 && own.size() > in_files) {
    out.push_back(concat(own[0], ": excludes ", join(std::span(own).subspan(1), " and "),
                         "; put all splits into the file, or all into flags"));
  }
  if (!split.empty() && !own.empty()) {
    out.push_back(
        concat("--split: excludes ", own[0], ", whose files are whole splits; leave it out"));
  }
  for (std::string& problem : fim.problems()) out.push_back(std::move(problem));
  if (fim.fim_data && !has_token_files()) {
    out.push_back("--fim-data: is for token files; give --data-path");
  }
  if (!text.empty()) sources.push_back("--text");
  if (mock_data) sources.push_back("--mock-data");
  if (!token_batches.empty()) sources.push_back("--token-batches");
  if (!batches.empty()) sources.push_back("--batches");
  if (!sft_data.empty()) sources.push_back("--sft-data");
  if (!preferences.data.empty()) sources.push_back("--data");
  for (std::string& problem : preferences.problems()) out.push_back(std::move(problem));
  if (has_token_files()) sources.push_back(shared.empty() ? own[0] : shared[0]);
  if (sources.size() > 1) {
    out.push_back(concat(sources[0], ": excludes ", join(std::span(sources).subspan(1), " and "),
                         "; keep one"));
  }
  if (sft_data.empty() && !sft_valid_data.empty()) {
    out.push_back("--sft-data: is missing; --sft-valid-data is for it");
  }
  return out;
}

void LoaderConfig::fields(FieldList& list) {
  list.section("loader");
  list.add("dataloader-type", dataloader_type,
           {{"single", OrderKind::kSingle}, {"cyclic", OrderKind::kCyclic}},
           "samples once, in order, or over and over, permuted anew in every epoch");
  list.add("data-sharding", data_sharding,
           "cyclic: every data-parallel rank keeps to its own share of the samples");
  list.add("num-workers", num_workers, "threads of a rank that read ahead; 0: the step reads")
      .min(0)
      .limit(256);
  list.add("prefetch-factor", prefetch_factor, "micro-batches that may wait for each worker")
      .min(1)
      .limit(1 << 16);
  list.add("consumed-train-samples", consumed_train_samples,
           "begin after so many samples, as if the iterations that take them were done")
      .min(0)
      .limit(kMaxSamples);
}

void PrecisionConfig::fields(FieldList& list) {
  list.section("precision");
  list.add("bf16", bf16, "bfloat16 weights and activations, fp32 main weights and gradients");
  list.add("fp16", fp16, "float16, with loss scaling");
  list.add("fp64", fp64, "double precision, on the CPU, for checking");
}

Dtype PrecisionConfig::model_dtype() const {
  return bf16 ? Dtype::kBf16 : fp16 ? Dtype::kF16 : fp64 ? Dtype::kF64 : Dtype::kF32;
}

std::vector<std::string> PrecisionConfig::problems() const {
  std::vector<std::string> given;
  if (bf16) given.push_back("--bf16");
  if (fp16) given.push_back("--fp16");
  if (fp64) given.push_back("--fp64");
  if (given.size() < 2) return {};
  return {
      concat(given[0], ": excludes ", join(std::span(given).subspan(1), " and "), "; keep one")};
}

void RuntimeConfig::fields(FieldList& list) {
  list.section("runtime");
  list.add("device", device,
           {{"auto", DeviceKind::kAuto}, {"cpu", DeviceKind::kCpu}, {"cuda", DeviceKind::kCuda}},
           "where to compute; auto: on the GPU where there is one");
  list.add("num-threads", num_threads, "CPU threads of this process; results do not depend on it")
      .min(0)
      .limit(1 << 14)
      .defaults_to("all cores; in training no more than pay for the size of the model");
  list.add("seed", seed, "seed of weights, data order, dropout and sampling").min(0);
  list.add("deterministic-mode", deterministic_mode,
           "the same bits in every run on a GPU too (on the CPU they always are)");
  list.add("exact", exact,
           "kernels whose result for a token never depends on the other tokens of the batch: "
           "training, score and generation compute the same bits; slower");
  list.add("cuda-graph-impl", cuda_graph_impl,
           {{"none", CudaGraphs::kNone},
            {"local", CudaGraphs::kLocal},
            {"full_iteration", CudaGraphs::kLocal},
            {"transformer_engine", CudaGraphs::kLocal}},
           "local, or Megatron's other names: steps of the same shape are recorded once and "
           "replayed, on GPUs");
  list.add("limit-arch", limit_arch,
           "choose kernels as on a GPU of this architecture (80, 86, 89, 90 ...), to try what runs "
           "on older cards; 0: that of the GPU")
      .min(0)
      .limit(999);
  list.add("kernel-cache-path", kernel_cache_path,
           "folder for what kernels choose by measuring; none: it is measured in every run")
      .defaults_to("$XDG_CACHE_HOME/bevatron, else ~/.cache/bevatron");
}

void TrainConfig::fields(FieldList& list) {
  list.section("training");
  list.add("preset", preset,
           "a model by name (llama3-8b, gpt2-124m, ...); model flags change it, and sizes that "
           "follow others follow");
  list.add("hf-model", hf_model, "Hugging Face folder to take shape, weights and tokenizer from");
  list.add("export-hf", export_hf, "folder to write the model to in Hugging Face's format");
  list.add(
      "adapter", adapter,
      "folder of a LoRA adapter in peft's format, which goes on training; the model is frozen");
  list.add("export-adapter", export_adapter,
           "folder to write the trained adapter to in peft's format");
  list.add("train-iters", train_iters, "length of the run in iterations").min(0).limit(kMaxIters);
  list.add("train-samples", train_samples, "length of the run in samples")
      .min(0)
      .limit(kMaxSamples);
  list.add("epochs", epochs,
           "length of the run in passes over the training data, whole or not (2.5), instead of "
           "--train-iters; for text, token files and conversations")
      .min(0)
      .limit(1e6);
  list.add("exit-duration-in-mins", exit_duration_in_mins, "stop after so many minutes; 0: never")
      .min(0);
  list.add("exit-interval", exit_interval,
           "stop at the next multiple of so many iterations; 0: never")
      .min(0)
      .limit(kMaxIters);
  list.add("eval-interval", eval_interval, "iterations between validations")
      .min(0)
      .limit(kMaxIters)
      .defaults_to("1000 when --eval-iters is given, else no validation");
  list.add("eval-iters", eval_iters, "global batches of one validation; 0: none")
      .min(0)
      .limit(kMaxIters)
      .defaults_to("100 when --eval-interval or --test-data-path is given");
  eval.fields(list);
  list.add("exit-signal", exit_signal,
           {{"SIGTERM", ExitSignal::kTerm},
            {"SIGINT", ExitSignal::kInt},
            {"SIGHUP", ExitSignal::kHup},
            {"SIGUSR1", ExitSignal::kUsr1},
            {"SIGUSR2", ExitSignal::kUsr2}},
           "signal that ends the run after a checkpoint, besides SIGINT and SIGTERM");
  list.add("nan-policy", nan_policy, {{"stop", NanPolicy::kStop}, {"skip", NanPolicy::kSkip}},
           "after naming the first tensor with a NaN or Inf: save the state before this step and "
           "stop, or go on without the step");
  list.add("max-consecutive-skips", max_consecutive_skips,
           "so many steps in a row may be skipped; one more, and the run saves and stops; 0: any "
           "number")
      .min(0)
      .limit(kMaxIters);
  list.add("check-for-nan-in-loss-and-grad", check_for_nan_in_loss_and_grad,
           "look for NaN and Inf in every step");
  list.add("check-for-spiky-loss", check_for_spiky_loss,
           "warn of a loss that is 10 times the largest of the first 100 iterations");
  list.add("check-for-large-grads", check_for_large_grads,
           "warn of a gradient norm that is 10 times the largest of the first 100 iterations");
  list.add("iterations-to-skip", iterations_to_skip,
           "iterations whose batch is read and left out: no update, no log line")
      .min(1)
      .limit(kMaxIters);
  list.add("check-weight-hash-across-dp-replicas-interval", check_weight_hash_interval,
           "iterations between comparisons of the weights of ranks that hold copies; a difference "
           "ends the run and names the rank; 0: never")
      .min(0)
      .limit(kMaxIters);
  const auto tensors = [&](const char* name, std::int64_t& interval, const char* what) {
    list.add(name, interval,
             concat("iterations between files of ", what,
                    " in the folder of --save, from a pass of its own; 0: none"))
        .min(0)
        .limit(kMaxIters);
  };
  tensors("save-activations-interval", save_activations_interval, "the results of all ops");
  tensors("save-dgrads-interval", save_dgrads_interval, "the gradients of activations");
  tensors("save-wgrads-interval", save_wgrads_interval, "the gradients of weights");
  list.add("dry-run", dry_run, "print configuration, parameters, FLOPs and memory, start nothing");
  list.add("json", json, "print the dry run, what --skip-train or verify finds, as JSON");
}

int TrainConfig::exit_signal_number() const {
  constexpr int kNumbers[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2};
  return kNumbers[static_cast<std::size_t>(exit_signal)];
}

std::vector<std::string> TrainConfig::resolve(bool tests) {
  std::vector<std::string> problems;
  bool validates = eval_interval > 0 || eval.full_validation || eval.skip_train;
  if (eval_iters >= 0 && !eval.full_validation) validates = eval_iters > 0;
  if (eval_iters < 0) eval_iters = validates || tests ? 100 : 0;
  if (validates && eval_interval == 0) eval_interval = 1000;
  if (!validates) eval_interval = 0;
  if (eval.early_stop_patience > 0 && !validates) {
    problems.push_back(
        "--early-stop-patience: is about validations, and there are none; give --eval-interval");
  }
  if (nan_policy == NanPolicy::kSkip && !check_for_nan_in_loss_and_grad) {
    problems.push_back(
        "--nan-policy: skip needs the check; drop --no-check-for-nan-in-loss-and-grad");
  }
  return problems;
}

void LogConfig::fields(FieldList& list) {
  list.section("logging");
  list.add("log-interval", log_interval, "iterations between log lines").min(1).limit(kMaxIters);
  list.add("log-throughput", log_throughput, "TFLOP/s of a rank in the log line");
  list.add("log-params-norm", log_params_norm, "also log the norm of all parameters");
  list.add("log-num-zeros-in-grad", log_num_zeros_in_grad,
           "also log how many elements of the gradient are 0");
  list.add("log-memory-interval", log_memory_interval,
           "iterations between reports of memory, the peak by kind; 0: none")
      .min(0)
      .limit(kMaxIters);
  list.add("log-progress", log_progress,
           "also a line for each checkpoint in progress.txt of --save: iteration, throughput, "
           "floating-point operations and tokens");
  list.add("progress", progress, "live progress line, on a terminal");
  list.add("metrics-out", metrics_out,
           "JSON lines file, one line for every iteration and every evaluation; `bevatron plot` "
           "draws it. The folder of --save always has one, metrics.jsonl");
  list.add("tensorboard-dir", tensorboard_dir, "folder for TensorBoard event files");
  list.add("tensorboard-log-interval", tensorboard_log_interval, "iterations between its points")
      .min(1)
      .limit(kMaxIters);
  list.add("loss-svg", loss_svg, "file for a drawing of the loss at the end")
      .defaults_to("loss.svg in --save, else in the current folder");
}

void ProfileConfig::fields(FieldList& list) {
  list.section("profiling");
  list.add("profile-trace", profile_trace,
           "JSON file for a trace of a few iterations, for Perfetto or chrome://tracing");
  list.shorthand("profile", {{"profile-trace", "trace.json"}}, "--profile-trace trace.json");
  list.add("profile-step-start", profile_step_start, "iterations before the first that is traced")
      .min(0)
      .limit(kMaxIters);
  list.add("profile-step-end", profile_step_end, "the last iteration that is traced")
      .min(1)
      .limit(kMaxIters);
}

std::vector<std::string> ProfileConfig::problems(const TrainConfig& train) const {
  if (profile_trace.empty()) return {};
  if (profile_step_end <= profile_step_start) {
    return {concat("--profile-step-end: ", profile_step_end, " is not after --profile-step-start ",
                   profile_step_start)};
  }
  if (train.train_iters > 0 && profile_step_start >= train.train_iters) {
    return {concat("--profile-step-start: ", profile_step_start,
                   " iterations come before the trace, but --train-iters is ", train.train_iters,
                   "; use less")};
  }
  return {};
}

LrSchedule lr_schedule(const OptimConfig& optim, const BatchSchedule& batches) {
  LrSchedule out;
  out.max_lr = optim.lr;
  out.min_lr = optim.min_lr;
  out.init_lr = optim.lr_warmup_init;
  out.style = optim.lr_decay_style;
  out.wsd_style = optim.lr_wsd_decay_style;
  out.decay_steps = samples_of(optim.lr_decay_samples, optim.lr_decay_iters, batches);
  out.warmup_steps = optim.lr_warmup_fraction > 0
                         ? optim.lr_warmup_fraction * out.decay_steps
                         : samples_of(optim.lr_warmup_samples, optim.lr_warmup_iters, batches);
  // The decay covers the last iterations, which a batch size schedule makes larger than the first.
  std::int64_t before = optim.lr_decay_iters - optim.lr_wsd_decay_iters;
  out.wsd_decay_steps =
      optim.lr_wsd_decay_iters > 0 && before >= 0
          ? out.decay_steps - static_cast<double>(batches.samples_after(before))
          : samples_of(optim.lr_wsd_decay_samples, optim.lr_wsd_decay_iters, batches);
  return out;
}

WeightDecaySchedule weight_decay_schedule(const OptimConfig& optim, const TrainConfig& train,
                                          const BatchSchedule& batches) {
  return {.start = optim.start_weight_decay,
          .end = optim.end_weight_decay,
          .style = optim.weight_decay_incr_style,
          .steps = samples_of(train.train_samples, train.train_iters, batches)};
}

}  // namespace bev
