#include "app/megatron_flags.h"

#include <array>
#include <string>
#include <string_view>

#include "base/fields.h"
#include "base/text.h"

namespace bev {

namespace {

// Flags that share an explanation, separated by spaces.
struct Group {
  std::string_view names;
  std::string_view why;
};

// Accepted flags: they would not change any result.
constexpr auto kTaken = std::to_array<Group>({
    {"use-mcore-models transformer-impl enable-experimental", "there is one implementation"},
    {"attention-backend use-flash-attn attention-softmax-in-fp32 apply-query-key-layer-scaling "
     "no-masked-softmax-fusion",
     "attention is one fused kernel, with the softmax in f32"},
    {"no-bias-gelu-fusion no-bias-swiglu-fusion no-bias-dropout-fusion no-rope-fusion "
     "no-persist-layer-norm no-gradient-accumulation-fusion cross-entropy-loss-fusion "
     "cross-entropy-fusion-impl mla-down-proj-fusion",
     "kernels are fused where that is faster"},
    {"fp16-lm-cross-entropy", "the loss is computed in f32"},
    {"moe-grouped-gemm moe-permute-fusion moe-router-fusion moe-use-grouped-tensor",
     "experts are always computed together, and routing is one kernel"},
    {"moe-router-padding-for-fp8 moe-router-padding-for-quantization",
     "an expert may have any number of tokens"},
    {"moe-enable-deepep moe-flex-dispatcher-backend moe-flex-dispatcher-num-sms",
     "tokens are exchanged as --moe-token-dispatcher-type says"},
    {"moe-per-layer-logging", "--metrics-out and --tensorboard-dir always have every layer"},
    {"moe-paged-stash moe-paged-stash-page-size moe-paged-stash-buffer-size-factor-cuda "
     "moe-paged-stash-buffer-size-factor-cpu",
     "--moe-expert-rank-capacity-factor alone fixes the sizes"},
    {"cuda-graph-scope cuda-graph-modules cuda-graph-warmup-steps optimizer-cuda-graph",
     "--cuda-graph-impl local records whole steps"},
    {"te-rng-tracker inference-rng-tracker",
     "random numbers depend on seed, step and place; there is no state to track"},
    {"keep-fp8-transpose-cache", "products read FP8 weights either way round"},
    {"use-precision-aware-optimizer",
     "--main-grads-dtype, --main-params-dtype, --exp-avg-dtype and --exp-avg-sq-dtype act without "
     "it"},
    {"overlap-cpu-optimizer-d2h-h2d use-torch-optimizer-for-cpu-offload no-pin-cpu-grads "
     "no-pin-cpu-params",
     "the device updates state in host memory where it lies (--optimizer-cpu-offload)"},
    {"accumulate-allreduce-grads-in-fp32", "gradients are f32 unless --main-grads-dtype says else"},
    {"calculate-per-token-loss", "the loss is always the mean over the tokens of the global batch"},
    {"no-async-tensor-model-parallel-allreduce disable-tp-comm-overlap-ag "
     "disable-tp-comm-overlap-rs "
     "disable-tp-comm-bulk-dgrad disable-tp-comm-bulk-wgrad tp-comm-overlap-cfg "
     "tp-comm-overlap-rs-dgrad tp-comm-bootstrap-backend",
     "--tp-comm-overlap alone chooses how these exchanges overlap"},
    {"defer-embedding-wgrad-compute wgrad-deferral-limit",
     "weight gradients fill a pipeline's gaps with --pipeline-schedule zb-h1 or zb-v"},
    {"overlap-dispatch-backward-with-experts-wgrad ep-overlap-early-attn-memory-release",
     "--overlap-moe-expert-parallel-comm and --delay-wgrad-compute choose the order"},
    {"overlap-p2p-communication-warmup-flush", "--overlap-p2p-communication overlaps there too"},
    {"use-megatron-fsdp fsdp-double-buffer suggested-communication-unit-size",
     "--data-parallel-sharding-strategy alone shares out parameters"},
    {"ddp-average-in-collective no-gradient-reduce-div-fusion no-align-param-gather "
     "ddp-pad-buckets-for-high-nccl-busbw overlap-param-gather-with-optimizer-step",
     "it changes no result; --overlap-grad-reduce and --overlap-param-gather hide exchanges"},
    {"distributed-backend disable-gloo-process-groups create-all-gather-group use-nccl-ub "
     "use-sharp "
     "sharp-enabled-group high-priority-stream-groups nccl-communicator-config-path",
     "the device chooses how ranks exchange"},
    {"use-cpu-initialization no-initialization", "initial weights are the same on every layout"},
    {"make-vocab-size-divisible-by", "the vocabulary is never padded"},
    {"no-position-embedding", "--position-embedding-type alone counts"},
    {"tokenizer-type", "the files of --tokenizer tell what they are"},
    {"no-create-attention-mask-in-dataloader no-mmap-bin-files num-dataset-builder-threads "
     "dataloader-fast-cache-load dataloader-defer-npy-index-mmap",
     "data is read in one way, which changes no sample"},
    {"ckpt-format dist-ckpt-format use-dist-ckpt auto-detect-ckpt-format ckpt-fully-parallel-save "
     "ckpt-fully-parallel-load no-ckpt-fully-parallel-save ckpt-assume-constant-structure "
     "dist-ckpt-strictness dist-ckpt-optim-fully-reshardable async-strategy "
     "use-persistent-ckpt-worker",
     "checkpoints have one format, which all ranks write and any layout loads"},
    {"use-mp-args-from-checkpoint-args",
     "a run that goes on by --load alone has the layout of before, except for flags given"},
    {"no-save-rng", "a checkpoint has no state of random numbers but the seed"},
    {"exit-signal-handler", "SIGTERM and SIGINT always end a run with a checkpoint"},
    {"manual-gc manual-gc-interval no-manual-gc-eval empty-unused-memory-level",
     "there is no garbage collector and memory is kept"},
    {"rerun-mode", "--nan-policy decides what a bad step does"},
    {"timing-log-level timing-log-option no-barrier-with-level-1-timing log-timers-to-tensorboard",
     "--profile-trace shows where time goes"},
    {"log-energy log-straggler", "it changes no result; these numbers are not logged"},
    {"log-progress logging-level log-memory-to-tensorboard log-world-size-to-tensorboard "
     "log-validation-ppl-to-tensorboard log-loss-scale-to-tensorboard "
     "no-log-loss-scale-to-tensorboard "
     "no-log-learning-rate-to-tensorboard tensorboard-queue-size",
     "what is logged is fixed; --metrics-out and --tensorboard-dir have all of it"},
    {"wandb-project wandb-exp-name wandb-entity wandb-save-dir no-one-logger",
     "nothing is sent anywhere; --metrics-out and --tensorboard-dir write files"},
});

// Refused flags: they would change something that has another name here or is not supported.
constexpr auto kRefused = std::to_array<Group>({
    {"vocab-file merge-file",
     "give --tokenizer the folder that has vocab.json and merges.txt, or its tokenizer.json"},
    {"yaml-cfg", "give --config FILE.yaml, whose keys are the names of flags"},
    {"fp8-hybrid", "give --fp8-format hybrid"},
    {"fp8-e4m3", "give --fp8-format e4m3"},
    {"fp8-dot-product-attention fp8-multi-head-attention fp8-output-proj",
     "attention and head stay in the model's precision; leave it out"},
    {"enable-cuda-graph external-cuda-graph", "give --cuda-graph-impl local, which is the default"},
    {"cpu-offloading", "give --cpu-offloading-num-layers"},
    {"moe-extended-tp", "give --expert-tensor-parallel-size"},
    {"moe-apply-probs-on-input", "probabilities multiply what experts give; leave it out"},
    {"moe-latent-size", "experts of latents are not supported; leave it out"},
    {"rotary-seq-len-interpolation-factor",
     "give --rope-scaling-type linear and the factor to --rope-scaling-factor"},
    {"openai-gelu", "give --activation gelu_tanh"},
    {"init-method-xavier-uniform", "weights are drawn from a normal; give --init-method-std"},
    {"fp32-residual-connection apply-residual-connection-post-layernorm",
     "the residual is the plain sum in the model's precision; leave it out"},
    {"data-parallel-random-init", "copies of a model begin alike; leave it out"},
    {"use-torch-fsdp2 use-custom-fsdp",
     "give --data-parallel-sharding-strategy optim_grads_params"},
    {"megatron-fsdp-main-params-dtype", "give --main-params-dtype"},
    {"megatron-fsdp-main-grads-dtype", "give --main-grads-dtype"},
    {"freeze-base-for-mtp", "give --train-only 'mtp.*'"},
    {"apply-wd-to-qk-layernorm",
     "give --param-group '*.q_layernorm.weight:wd-mult=1' '*.k_layernorm.weight:wd-mult=1'"},
    {"pretrained-checkpoint", "give --load DIR --finetune"},
    {"sft", "give the conversations to --sft-data"},
    {"profile use-pytorch-profiler profile-ranks", "give --profile-trace FILE"},
    {"record-memory-history memory-snapshot-path",
     "give --log-memory-interval, or --profile-trace FILE"},
    {"log-max-attention-logit qk-clip", "logits of attention are never written; leave it out"},
});

void add(FieldList& list, const Group& group, bool taken) {
  for (std::string& name : split(group.names, ' ')) {
    std::string why(group.why);
    list.foreign({std::move(name), taken, taken ? "is not needed: " + why : why});
  }
}

}  // namespace

void add_megatron_flags(FieldList& list) {
  for (const Group& group : kTaken) add(list, group, true);
  for (const Group& group : kRefused) add(list, group, false);
}

}  // namespace bev
