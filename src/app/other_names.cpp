#include "app/other_names.h"

#include <algorithm>
#include <array>
#include <span>

#include "base/fields.h"
#include "base/text.h"

namespace bev {

namespace {

// Names of one meaning, separated by spaces. The first row with a name whose `flag` the command has
// counts; "" is there always.
struct Names {
  std::string_view names;
  std::string_view flag;
  std::string_view advice = {};  // instead of "here it is --FLAG"
};

constexpr auto kLength = std::to_array<Names>({
    {"num-epochs num-train-epochs max-epochs n-epochs epoch", "epochs"},
    {"epochs num-epochs num-train-epochs max-epochs n-epochs epoch", "train-samples",
     "the length of a run is --train-iters or --train-samples"},
    {"max-steps max-iters num-steps total-steps train-steps iterations num-iterations steps iters "
     "num-iters max-train-steps",
     "train-iters"},
    {"batch-size train-batch-size total-batch-size effective-batch-size", "global-batch-size",
     "a step takes --global-batch-size samples, a device --micro-batch-size of them at a time"},
    {"batch-size bs", "micro-batch-size"},
    {"per-device-train-batch-size per-gpu-train-batch-size train-micro-batch-size-per-gpu "
     "device-batch-size micro-bs mbs",
     "micro-batch-size"},
    {"gbs", "global-batch-size"},
    {"per-device-eval-batch-size eval-batch-size", "eval-micro-batch-size"},
    {"gradient-accumulation-steps grad-accum-steps grad-accum gradient-accumulation "
     "accumulate-grad-batches",
     "global-batch-size",
     "give --global-batch-size: this number x --micro-batch-size x the data-parallel ranks"},
    {"max-seq-length max-seq-len seq-len sequence-length sequence-len block-size context-length "
     "context-size ctx-size n-ctx model-max-length cutoff-len max-source-length",
     "seq-length"},
    {"max-length max-tokens max-gen-len num-predict n-predict num-tokens n-tokens "
     "max-completion-tokens max-output-tokens length",
     "max-new-tokens"},
    {"max-length", "seq-length"},
});

constexpr auto kFiles = std::to_array<Names>({
    {"config-file config-path cfg config-yaml", "", "give --config FILE.yaml"},
    {"model model-name model-name-or-path model-path model-id base-model pretrained-model "
     "pretrained-model-name-or-path init-from checkpoint-path",
     "preset", "a Hugging Face folder goes to --hf-model, the name of a known model to --preset"},
    {"model model-name model-name-or-path model-path model-id model-dir base-model "
     "pretrained-model pretrained-model-name-or-path folder checkpoint-path input input-dir source",
     "hf-model"},
    {"model-type arch architecture model-arch", "model-family"},
    {"model-size", "preset"},
    {"tokenizer-name tokenizer-path tokenizer-name-or-path tokenizer-file tokenizer-dir",
     "tokenizer"},
    {"train-file train-data train-path data dataset datasets dataset-name dataset-path data-dir "
     "data-file data-files input corpus",
     "sft-data", "text goes to --text, token files to --data-path, conversations to --sft-data"},
    {"validation-file valid-data val-data eval-data eval-file validation-data val-file "
     "eval-dataset",
     "sft-valid-data",
     "token files go to --valid-data-path, conversations to --sft-valid-data; --split cuts a share "
     "off other data"},
    {"val-set-size validation-split valid-split val-split test-split", "split"},
    {"output-dir out-dir output out checkpoint-dir save-dir save-path save-folder ckpt-dir "
     "checkpoints-dir default-root-dir run-dir",
     "save-interval", "checkpoints go to --save, a Hugging Face folder to --export-hf"},
    {"output-dir out-dir output out outfile output-path save-dir hf-out", "export-hf"},
    {"output-dir out-dir output out output-path save-dir", "output-prefix"},
    {"output-dir out-dir out output-path output-file save-dir", "output"},
    {"export export-dir output-hf hf-export save-pretrained merged-output-dir", "export-hf"},
    {"resume resume-from-checkpoint resume-from restore checkpoint ckpt from-checkpoint "
     "load-checkpoint load-dir load-from",
     "load"},
    {"overwrite-output-dir overwrite force", "existing-run", "give --existing-run replace"},
    {"save-total-limit keep-checkpoints keep-last-n max-checkpoints", "most-recent-k"},
    {"save-steps save-every checkpoint-every checkpoint-interval ckpt-interval save-freq "
     "save-strategy",
     "save-interval"},
    {"report-to wandb use-wandb wandb-log wandb-run-name tensorboard log-dir logging-dir "
     "tensorboard-log-dir with-tracking",
     "tensorboard-dir",
     "give a folder to --tensorboard-dir or a file to --metrics-out; nothing is sent anywhere"},
});

constexpr auto kShape = std::to_array<Names>({
    {"n-layer n-layers layers num-hidden-layers depth num-decoder-layers", "num-layers"},
    {"n-head n-heads heads num-heads attention-heads nheads", "num-attention-heads"},
    {"n-kv-head n-kv-heads num-kv-heads num-key-value-heads kv-heads", "num-query-groups"},
    {"n-embd n-embed d-model dim embed-dim embedding-dim model-dim emb-dim embd hidden hidden-dim",
     "hidden-size"},
    {"intermediate-size d-ff ffn-dim ffn-size mlp-hidden-size n-inner ffn-hidden-dim",
     "ffn-hidden-size"},
    {"vocab vocabulary-size n-vocab padded-vocab-size", "vocab-size"},
    {"head-dim d-head head-size", "kv-channels"},
    {"rope-theta rope-base", "rotary-base"},
    {"dropout resid-pdrop residual-dropout", "hidden-dropout",
     "give --hidden-dropout and --attention-dropout"},
    {"num-local-experts n-experts n-routed-experts", "num-experts"},
    {"num-experts-per-tok top-k-experts", "moe-router-topk"},
});

constexpr auto kTraining = std::to_array<Names>({
    {"learning-rate max-lr base-lr peak-lr", "lr"},
    {"warmup-steps warmup-iters num-warmup-steps lr-warmup-steps warmup", "lr-warmup-iters"},
    {"warmup-ratio warmup-fraction lr-warmup-ratio", "lr-warmup-fraction"},
    {"lr-scheduler-type lr-scheduler scheduler lr-schedule scheduler-type", "lr-decay-style"},
    {"max-grad-norm grad-clip gradient-clipping gradient-clip-val clip-grad-norm grad-norm-clip",
     "clip-grad"},
    {"wd", "weight-decay"},
    {"beta1", "adam-beta1"},
    {"beta2", "adam-beta2"},
    {"adam-epsilon eps epsilon", "adam-eps"},
    {"optim optimizer-type", "optimizer"},
    {"momentum", "sgd-momentum"},
    {"logging-steps log-every log-steps logging-interval print-every log-every-n-steps",
     "log-interval"},
    {"eval-steps eval-every eval-freq val-check-interval val-interval validation-interval "
     "evaluation-interval do-eval eval-strategy evaluation-strategy",
     "eval-interval"},
    {"eval-only", "skip-train"},
    {"do-train", "train-iters", "leave it out: `train` trains"},
    {"decay-lr", "lr-decay-style"},
    {"bias", "add-bias-linear"},
    {"eval-batches max-eval-batches limit-val-batches max-eval-steps", "eval-iters"},
    {"gradient-checkpointing activation-checkpointing checkpoint-activations "
     "gradient-checkpointing-kwargs",
     "recompute-granularity", "give --recompute-granularity full"},
    {"mixed-precision precision amp torch-dtype dtype half", "fp16",
     "give --bf16 or --fp16; without them the model is in f32"},
    {"precision torch-dtype type outtype", "dtype"},
    {"zero-stage zero", "data-parallel-sharding-strategy",
     "ZeRO's stages 1, 2 and 3 are --data-parallel-sharding-strategy optim, optim_grads and "
     "optim_grads_params"},
    {"fsdp deepspeed deepspeed-config ds-config", "data-parallel-sharding-strategy",
     "ZeRO and FSDP are --data-parallel-sharding-strategy; other settings have flags of their own"},
    {"offload-optimizer cpu-offload offload-optimizer-device", "optimizer-cpu-offload"},
    {"offload-params offload-param", "cpu-offloading-num-layers"},
    {"tensor-parallel-size tensor-parallel-degree tensor-parallel", "tensor-model-parallel-size"},
    {"pipeline-parallel-size pipeline-parallel-degree pipeline-parallel",
     "pipeline-model-parallel-size"},
    {"data-parallel-degree data-parallel ddp", "data-parallel-size"},
    {"expert-parallel-size expert-parallel-degree", "expert-model-parallel-size"},
    {"num-gpus gpus n-gpus nproc-per-node world-size num-processes devices", "ranks",
     "the ranks are --dp x --tp x --pp x --cp; mpirun or srun start several processes"},
    {"dataloader-num-workers data-workers num-data-workers", "num-workers"},
    {"random-seed manual-seed data-seed", "seed"},
    {"gpu cuda use-gpu no-cuda use-cpu", "device", "give --device cuda or --device cpu"},
    {"n-threads nthreads threads cpu-threads", "num-threads"},
    {"local-rank", "", "leave it out: launchers tell ranks by the environment"},
    {"sample-packing packing", "sft-data", "leave it out: conversations are always packed"},
    {"train-on-inputs", "sft-data", "leave it out: the loss is on what the assistant says"},
    {"compile torch-compile flash-attention flash-attn use-flash-attention use-flash-attention-2 "
     "attn-implementation tf32 xformers-attention",
     "seed", "leave it out: the kernels of a step are chosen for the device"},
    {"lora-r lora-dim", "lora-rank"},
    {"lora use-peft peft", "lora-rank", "give the rank of the adapters"},
    {"target-modules lora-target", "lora-target-modules"},
    {"loraplus-lr-ratio loraplus-ratio", "lora-plus-ratio"},
    {"qlora load-in-4bit", "quantize-base", "give nf4, with --lora-rank"},
    {"load-in-8bit", "quantize-base", "weights of 8 bits are not supported; nf4 has 4"},
    {"modules-to-save", "lora-modules-to-save"},
    {"init-lora-weights lora-init-method", "lora-init"},
});

constexpr auto kGeneration = std::to_array<Names>({
    {"temp", "temperature"},
    {"do-sample sample sampling", "temperature", "give --temperature above 0 to sample"},
    {"topk", "top-k"},
    {"topp nucleus", "top-p"},
    {"interactive conversation chat-mode instruct repl", "chat"},
    {"system system-message", "system-prompt"},
    {"file input-file prompts prompts-file prompt-path", "prompt-file"},
    {"text query message question instruction start", "prompt"},
    {"input-ids prompt-ids prompt-token-ids", "prompt-tokens"},
    {"repeat-penalty penalty rep-pen", "repetition-penalty"},
    {"stop-words stop-strings stop-sequences reverse-prompt stop-sequence", "stop"},
    {"eos-token-id eos-id stop-token termination-id stop-ids", "stop-token-ids"},
    {"min-length min-tokens", "min-new-tokens"},
    {"num-samples num-sequences best-of samples-per-prompt", "n"},
    {"beam-width beams beam-size use-beam-search best-of-beams", "num-beams"},
    {"logprobs return-log-probs output-scores n-probs", "json",
     "log-probabilities are in the line of --json, those of the prompt with --prompt-logprobs"},
    {"max-num-seqs max-batch-size max-concurrency parallel np inference-max-requests "
     "inference-dynamic-batching-max-requests",
     "max-seqs"},
    {"max-num-batched-tokens chunked-prefill-size max-batch-tokens ubatch-size "
     "inference-dynamic-batching-max-tokens",
     "max-step-tokens"},
    {"page-size inference-dynamic-batching-block-size", "block-tokens"},
    {"gpu-memory-utilization mem-fraction-static num-gpu-blocks-override kv-cache-memory-bytes "
     "max-total-tokens inference-dynamic-batching-buffer-size-gb",
     "kv-cache-tokens",
     "the cache takes what the requests need and memory allows; --kv-cache-tokens sets its size"},
    {"enable-prefix-caching radix-cache inference-dynamic-batching-prefix-caching", "prefix-cache"},
    {"batch-invariant-mode enable-deterministic-inference batch-invariant", "exact"},
    {"skip-special-tokens", "show-special-tokens",
     "leave it out: special tokens are hidden unless --show-special-tokens"},
});

bool lists(const Names& row, std::string_view name) {
  const std::vector<std::string> all = split(row.names, ' ');
  return std::ranges::find(all, name) != all.end();
}

}  // namespace

std::string known_as(const FieldList& list, std::string_view name, std::string_view dashes) {
  for (std::span<const Names> rows :
       {std::span<const Names>(kLength), std::span<const Names>(kFiles),
        std::span<const Names>(kShape), std::span<const Names>(kTraining),
        std::span<const Names>(kGeneration)}) {
    for (const Names& row : rows) {
      if (!lists(row, name) || !(row.flag.empty() || list.find(row.flag))) continue;
      return row.advice.empty() ? concat("here it is ", dashes, row.flag) : std::string(row.advice);
    }
  }
  return "";
}

}  // namespace bev
