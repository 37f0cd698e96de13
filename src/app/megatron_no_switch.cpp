#include <array>

#include "app/megatron_tables.h"

namespace bev {

namespace {

constexpr auto kNoSwitch = std::to_array<MegatronGroup>({
    {"use-mcore-models use-legacy-models transformer-impl= enable-experimental "
     "use-te-activation-func use-transformer-engine-op-fuser use-kitchen-attention "
     "kitchen-attention-backend= moe-use-legacy-grouped-gemm use-grouped-gemm-for-dense-mlp "
     "use-grouped-gemm-for-shared-expert legacy-tokenizer export-force-local-attention "
     "use-gigatoken is-hybrid-model",
     "there is one implementation"},
    {"openai-gelu onnx-safe= disable-msc img-dim= test-mode", "it has no effect in training"},
    {"attention-backend= use-flash-attn flash-attention-version= attention-softmax-in-fp32 "
     "apply-query-key-layer-scaling no-query-key-layer-scaling no-masked-softmax-fusion",
     "attention is one fused kernel, with the softmax in f32"},
    {"no-bias-gelu-fusion bias-swiglu-fusion= no-bias-swiglu-fusion no-bias-dropout-fusion "
     "no-rope-fusion use-flashinfer-fused-rope no-persist-layer-norm "
     "no-gradient-accumulation-fusion "
     "cross-entropy-loss-fusion cross-entropy-fusion-impl= mla-down-proj-fusion "
     "fused-residual-rmsnorm use-fused-weighted-squared-relu disable-jit-fuser",
     "kernels are fused where that is faster"},
    {"disable-mamba-mem-eff-path",
     "the backward of Mamba layers computes convolutions and states again"},
    {"fp16-lm-cross-entropy", "the loss is computed in f32"},
    {"disable-bf16-reduced-precision-matmul", "products are summed in f32"},
    {"moe-grouped-gemm moe-permute-fusion moe-router-fusion moe-use-grouped-tensor "
     "moe-single-grouped-weight moe-single-grouped-bias",
     "experts are always computed together, and routing is one kernel"},
    {"moe-router-padding-for-fp8 moe-router-padding-for-quantization",
     "an expert may have any number of tokens"},
    {"moe-enable-deepep moe-deepep-num-sms= moe-flex-dispatcher-backend= "
     "moe-flex-dispatcher-num-sms= moe-hybridep-num-sms= moe-hybridep-num-sms-preprocessing= "
     "moe-hybridep-num-blocks-permute= moe-hybridep-num-blocks-unpermute= "
     "moe-hybridep-pad-uneven-dispatch-inputs moe-permute-fusion-into-hybridep "
     "moe-ncclep-zero-copy",
     "tokens are exchanged as --moe-token-dispatcher-type says"},
    {"moe-per-layer-logging", "--metrics-out and --tensorboard-dir always have every layer"},
    {"moe-paged-stash moe-paged-stash-page-size= moe-paged-stash-buffer-size-factor-cuda= "
     "moe-paged-stash-buffer-size-factor-cpu=",
     "--moe-expert-rank-capacity-factor alone fixes the sizes"},
    {"moe-mlp-glu-interleave-size= moe-shared-expert-glu-interleave-size=",
     "weights of MLPs lie as their kernels want them"},
    {"enable-cuda-graph external-cuda-graph cuda-graph-scope+ cuda-graph-modules+ "
     "cuda-graph-warmup-steps= optimizer-cuda-graph "
     "delay-offload-until-cuda-graph",
     "--cuda-graph-impl local records whole steps"},
    {"te-rng-tracker inference-rng-tracker",
     "random numbers depend on seed, step and place; there is no state to track"},
    {"keep-fp8-transpose-cache keep-fp8-transpose-cache-when-using-custom-fsdp",
     "products read FP8 weights either way round"},
    {"use-precision-aware-optimizer",
     "--main-grads-dtype, --main-params-dtype, --exp-avg-dtype and --exp-avg-sq-dtype act "
     "without it"},
    {"muon-use-syrk", "products of a matrix with itself are those of all matrices"},
    {"no-use-layer-wise-param-layout use-layer-wise-distributed-optimizer",
     "whole matrices are dealt out to the ranks of --use-distributed-optimizer as they are "
     "needed"},
    {"overlap-cpu-optimizer-d2h-h2d use-torch-optimizer-for-cpu-offload no-pin-cpu-grads "
     "no-pin-cpu-params",
     "the device updates state in host memory where it lies (--optimizer-cpu-offload)"},
    {"cpu-offloading-retain-pinned-cpu-buffers fine-grained-offloading-max-inflight-offloads=",
     "memory of the host is pinned once, at the start"},
    {"accumulate-allreduce-grads-in-fp32", "gradients are f32 unless --main-grads-dtype says else"},
    {"calculate-per-token-loss", "the loss is always the mean over the tokens of the global batch"},
    {"no-async-tensor-model-parallel-allreduce disable-tp-comm-overlap-ag "
     "no-tp-comm-overlap-ag disable-tp-comm-overlap-rs no-tp-comm-overlap-rs "
     "disable-tp-comm-bulk-dgrad no-tp-comm-bulk-dgrad disable-tp-comm-bulk-wgrad "
     "no-tp-comm-bulk-wgrad disable-tp-comm-split-ag no-tp-comm-split-ag "
     "disable-tp-comm-split-rs no-tp-comm-split-rs tp-comm-overlap-cfg= "
     "tp-comm-overlap-rs-dgrad tp-comm-bootstrap-backend=",
     "--tp-comm-overlap alone chooses how these exchanges overlap"},
    {"no-clone-scatter-output-in-embedding disable-clone-scatter-output-in-embedding",
     "a scattered embedding keeps no other memory alive"},
    {"defer-embedding-wgrad-compute wgrad-deferral-limit=",
     "weight gradients fill a pipeline's gaps with --pipeline-schedule zb-h1 or zb-v"},
    {"overlap-dispatch-backward-with-experts-wgrad ep-overlap-early-attn-memory-release "
     "high-priority-a2a-comm-stream",
     "--overlap-moe-expert-parallel-comm and --delay-wgrad-compute choose the order"},
    {"overlap-p2p-communication-warmup-flush", "--overlap-p2p-communication overlaps there too"},
    {"use-ring-exchange-p2p no-scatter-gather-tensors-in-pipeline deallocate-pipeline-outputs "
     "pipeline-model-parallel-comm-backend=",
     "messages between stages have one implementation"},
    {"mtp-standalone", "--pipeline-model-parallel-layout says which stages have these layers"},
    {"use-megatron-fsdp use-custom-fsdp megatron-fsdp-version= fsdp-double-buffer "
     "fsdp-db-use-persist-buf-on-alloc-fail megatron-fsdp-max-pool-double-buffer "
     "megatron-fsdp-enable-fine-grained-param-gather suggested-communication-unit-size= "
     "init-model-with-meta-device",
     "--data-parallel-sharding-strategy alone shares out parameters"},
    {"ddp-average-in-collective no-gradient-reduce-div-fusion no-align-param-gather "
     "align-param-gather no-align-grad-reduce disable-align-grad-reduce no-delay-grad-reduce "
     "delay-param-gather ddp-pad-buckets-for-high-nccl-busbw "
     "overlap-param-gather-with-optimizer-step",
     "it changes no result; --overlap-grad-reduce and --overlap-param-gather hide exchanges"},
    {"ddp-num-buckets=", "--ddp-bucket-size sets the size of buckets"},
    {"distributed-backend= disable-gloo-process-groups create-all-gather-group use-nccl-ub "
     "disable-symmetric-registration fsdp-manual-registration use-sharp sharp-enabled-group= "
     "high-priority-stream-groups+ nccl-communicator-config-path= symmetric-ar-type= "
     "nccl-all-reduce-for-prefill initialize-socket-comms lazy-mpu-init",
     "the device chooses how ranks exchange"},
    {"local-rank=", "launchers tell ranks by the environment"},
    {"use-cpu-initialization use-gpu-initialization no-initialization",
     "initial weights are the same on every layout"},
    {"make-vocab-size-divisible-by= no-pad-vocab-size disable-pad-vocab-size",
     "the vocabulary is never padded"},
    {"no-position-embedding", "--position-embedding-type alone counts"},
    {"tokenizer-type= tokenizer-metadata= tokenizer-hf-no-use-fast tokenizer-hf-use-fast "
     "trust-remote-code",
     "the files of --tokenizer tell what they are"},
    {"no-create-attention-mask-in-dataloader no-mmap-bin-files num-dataset-builder-threads= "
     "dataloader-fast-cache-load dataloader-defer-npy-index-mmap per-dataset-sequences-path=",
     "data is read in one way, which changes no sample"},
    {"ckpt-format= dist-ckpt-format= use-dist-ckpt auto-detect-ckpt-format "
     "ckpt-fully-parallel-save ckpt-fully-parallel-load no-ckpt-fully-parallel-save "
     "ckpt-fully-parallel-save-process-group= ckpt-fully-parallel-load-process-group= "
     "ckpt-fully-parallel-load-exchange-algo= ckpt-fully-parallel-load-per-rank-objects "
     "ckpt-pg-tensors-cache-path= ckpt-pg-tensors-cache-create ckpt-assume-constant-structure "
     "ckpt-drop-redundant-extra-state dist-ckpt-strictness= dist-ckpt-save-pre-mcore-014 "
     "dist-ckpt-optim-fully-reshardable distrib-optim-fully-reshardable-mem-efficient "
     "no-strict-fsdp-dtensor-load disable-strict-fsdp-dtensor-load "
     "ckpt-convert-update-legacy-dist-opt-format load-model-opt-format",
     "checkpoints have one format, which all ranks write and any layout loads"},
    {"async-strategy= use-persistent-ckpt-worker async-ckpt-use-cpu-shm "
     "async-ckpt-cpu-priority= async-ckpt-io-priority= dist-ckpt-workers=",
     "checkpoints are written in the background by threads of the run (--async-save)"},
    {"verify-integrity ckpt-load-validate-sharding-integrity "
     "no-ckpt-load-validate-sharding-integrity disable-ckpt-load-validate-sharding-integrity",
     "every block of a checkpoint has a checksum, which loading compares"},
    {"load-main-params-from-ckpt", "the weights of a checkpoint are the main parameters"},
    {"non-persistent-local-ckpt-algo=", "every rank writes its own part"},
    {"use-mp-args-from-checkpoint-args",
     "a run that goes on by --load alone has the layout of before, except for flags given"},
    {"use-tokenizer-model-from-checkpoint-args no-use-tokenizer-model-from-checkpoint-args "
     "disable-use-tokenizer-model-from-checkpoint-args",
     "the tokenizer is that of --tokenizer, or of the run of --load if there is none"},
    {"no-save-tokenizer-assets disable-save-tokenizer-assets",
     "a run saves the files of its tokenizer where they belong"},
    {"no-save-rng", "a checkpoint has no state of random numbers but the seed"},
    {"exit-signal-handler exit-signal-handler-for-training exit-signal-handler-for-dataloader",
     "SIGTERM and SIGINT always end a run with a checkpoint"},
    {"manual-gc manual-gc-interval= no-manual-gc-eval disable-manual-gc-eval "
     "empty-unused-memory-level=",
     "there is no garbage collector and memory is kept"},
    {"train-sync-interval=", "the host is at most one step ahead of the device"},
    {"rerun-mode=", "--nan-policy decides what a bad step does"},
    {"timing-log-level= timing-log-option= no-barrier-with-level-1-timing "
     "log-timers-to-tensorboard nvtx-ranges record-shapes",
     "--profile-trace shows where time goes"},
    {"flight-recorder-dump-path= flight-recorder-trace-buffer-size= "
     "flight-recorder-include-stack-trace no-flight-recorder-dump-on-timeout "
     "disable-flight-recorder-dump-on-timeout no-flight-recorder-extra-dump-on-exec "
     "disable-flight-recorder-extra-dump-on-exec no-flight-recorder-include-only-active "
     "disable-flight-recorder-include-only-active",
     "a collective that waits too long says who is missing (--distributed-timeout-minutes)"},
    {"use-pytorch-profiler profile-ranks+ pytorch-profiler-collect-callstack "
     "pytorch-profiler-collect-shapes pytorch-profiler-collect-chakra",
     "--profile writes one trace of all ranks"},
    {"log-energy log-straggler straggler-ctrlr-port= straggler-minmax-count= "
     "disable-straggler-on-startup log-device-memory-used log-memory-to-tensorboard "
     "log-world-size-to-tensorboard",
     "it changes no result; these numbers are not logged"},
    {"logging-level= log-validation-ppl-to-tensorboard log-batch-size-to-tensorboard "
     "log-loss-scale-to-tensorboard no-log-loss-scale-to-tensorboard "
     "disable-log-loss-scale-to-tensorboard no-log-learnig-rate-to-tensorboard "
     "no-log-learning-rate-to-tensorboard tensorboard-queue-size= config-logger-dir=",
     "what is logged is fixed; --metrics-out and --tensorboard-dir have all of it"},
    {"wandb-project= wandb-exp-name= wandb-entity= wandb-save-dir= no-one-logger "
     "enable-one-logger one-logger-async one-logger-project= one-logger-entity= "
     "one-logger-run-name= app-tag-run-name= app-tag-run-version= otel-enabled "
     "otel-service-name= otel-span-groups=",
     "nothing is sent anywhere; --metrics-out and --tensorboard-dir write files"},
    {"keep-sequential-samples", "documents keep their order with any number of --workers", "",
     "preprocess"},
    {"find-optimal-num-workers", "--workers takes all cores unless it is given", "", "preprocess"},
    {"log-interval=", "progress is shown all the time", "", "preprocess"},
});

}  // namespace

std::span<const MegatronGroup> no_switch_groups() { return kNoSwitch; }

}  // namespace bev
