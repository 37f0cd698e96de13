#include <array>

#include "app/megatron_tables.h"

namespace bev {

namespace {

constexpr auto kRenamed = std::to_array<MegatronGroup>({
    {"padded-vocab-size=", "--vocab-size", "here the vocabulary is never padded"},
    {"model-parallel-size=", "--tensor-model-parallel-size"},
    {"batch-size=", "--micro-batch-size", "or the samples of a step to --global-batch-size"},
    {"warmup=", "--lr-warmup-fraction"},
    {"checkpoint-activations activations-checkpoint-method=", "--recompute-granularity full"},
    {"yaml-cfg=", "--config FILE.yaml", "whose keys are the names of flags"},
    {"fp8-hybrid", "--fp8-format hybrid"},
    {"fp8-e4m3", "--fp8-format e4m3"},
    {"cpu-offloading", "--cpu-offloading-num-layers"},
    {"moe-extended-tp", "--expert-tensor-parallel-size"},
    {"moe-router-type=", "--moe-router-load-balancing-type"},
    {"moe-token-dropping", "--moe-expert-capacity-factor"},
    {"moe-router-topk-limited-devices=", "--moe-router-num-groups and --moe-router-group-topk"},
    {"rotary-seq-len-interpolation-factor=", "--rope-scaling-type linear",
     "and the factor to --rope-scaling-factor"},
    {"torch-fsdp2-no-reshard-after-forward", "--data-parallel-sharding-strategy optim_grads"},
    {"distribute-saved-activations", "--sequence-parallel",
     "which splits what is kept over the ranks"},
    {"distributed-timeout-seconds-after-init=", "--distributed-timeout-minutes"},
    {"fake-process-group", "--dry-run"},
    {"batch-invariant-mode batch-invariant-backend=", "--exact"},
    {"allow-ambiguous-pad-tokens", "--pad-id", "the token that has no loss, whatever else it is"},
    {"freeze-base-for-mtp", "--train-only 'mtp.*'"},
    {"no-weight-decay-cond-type=", "--apply-wd-to-qk-layernorm"},
    {"pretrained-checkpoint=", "--load DIR --finetune"},
    {"override-ckpt-iteration=", "--finetune --consumed-train-samples N"},
    {"override-lr-scheduler", "--override-opt-param-scheduler"},
    {"use-checkpoint-lr-scheduler", "--use-checkpoint-opt-param-scheduler"},
    {"start-wd=", "--start-weight-decay"},
    {"end-wd=", "--end-weight-decay"},
    {"wd-incr-style=", "--weight-decay-incr-style"},
    {"layernorm-epsilon=", "--norm-epsilon"},
    {"expert-parallel", "--expert-model-parallel-size"},
    {"moe-frequency=", "--moe-layer-freq"},
    {"standalone-embedding-stage standalone-embed-stage", "--pipeline-model-parallel-layout",
     "where E alone is a stage"},
    {"finetune-hf-dataset= finetune-data-split= finetune-data-files+", "--sft-data",
     "files with the conversations"},
    {"enable-gpt-oss", "--family gpt_oss", "or the flags of yarn"},
    {"sft", "--sft-data", "the conversations"},
    {"sft-tokenizer-prompt-format=", "--chat-template"},
    {"tiktoken-num-special-tokens= tokenizer-special-tokens+", "--tiktoken-special-tokens"},
    {"record-memory-history memory-snapshot-path=", "--log-memory-interval",
     "or --profile-trace FILE"},
    {"log-zeros", "--log-num-zeros-in-grad"},
    {"dump-param-to-param-group-map=", "--param-group",
     "PATTERN:NAME=NUMBER for parameters by name"},
    {"ckpt-convert-format= ckpt-convert-save=",
     "bevatron convert --load DIR --save OUT --ckpt-format FORMAT"},
    {"inference-dynamic-batching-block-size=", "bevatron serve --block-tokens"},
    {"inference-max-requests= inference-max-batch-size= "
     "inference-dynamic-batching-max-requests= "
     "inference-dynamic-batching-max-requests-override=",
     "bevatron serve --max-seqs"},
    {"inference-dynamic-batching-max-tokens= inference-dynamic-batching-max-tokens-override= "
     "max-tokens-to-oom=",
     "bevatron serve --max-step-tokens"},
    {"inference-dynamic-batching-buffer-size-gb= "
     "inference-dynamic-batching-paused-buffer-size-gb=",
     "bevatron serve --kv-cache-tokens"},
    {"inference-max-seq-length=", "bevatron serve --max-model-len"},
    {"inference-dynamic-batching-prefix-caching no-inference-dynamic-batching-prefix-caching",
     "bevatron serve --prefix-cache"},
    {"inference-dynamic-batching enable-chunked-prefill disable-chunked-prefill "
     "use-legacy-static-engine",
     "bevatron serve", "which batches requests as they come and computes long prompts in parts"},
    {"inference-coordinator-port= inference-mp-coordinator-port=", "bevatron serve --port"},
});

constexpr auto kRefused = std::to_array<MegatronGroup>({
    {"fp8-dot-product-attention fp8-multi-head-attention fp8-output-proj",
     "attention and head stay in the model's precision; leave it out"},
    {"apply-residual-connection-post-layernorm",
     "the residual is the plain sum, never what a norm made of it; leave it out"},
    {"data-parallel-random-init", "copies of a model begin alike; leave it out"},
    {"output-logit-dtype=", "the loss takes logits in f32; leave it out"},
    {"mup-width-mult=", "the width over --mup-base-hidden-size is computed; leave it out"},
    {"replication-factor=",
     "a shard has one copy on another machine, Megatron's factor 2; leave it out"},
    {"mid-level-dataset-surplus=", "blends take Megatron's surplus of 0.005; leave it out"},
    {"renormalize-blend-weights",
     "weights of a blend are shares, whatever their sum; leave it out"},
    {"tokenizer-hf-no-include-special-tokens tokenizer-hf-include-special-tokens "
     "tokenizer-sentencepiece-legacy no-tokenizer-sentencepiece-ignore-extra-whitespaces "
     "disable-tokenizer-sentencepiece-ignore-extra-whitespaces",
     "texts are encoded as the files of --tokenizer say; leave it out"},
    {"phase-transition-iterations=",
     "a run has one schedule; end it by --exit-interval and go on by --load with other flags"},
    {"spec+ model-spec=", "layers are described by flags, not by Python code; leave it out"},
    {"enable-msc object-storage-cache-path= s3-cache-path=",
     "files are on disks and shared file systems; copy them there and leave it out"},
    {"save-params-interval=", "a checkpoint has the weights (--save-interval); leave it out"},
    {"save-tokens-per-expert-interval= moe-routing-trace-path= "
     "moe-routing-trace-max-training-iters= moe-routing-trace-capture-logits "
     "moe-routing-trace-capture-hidden-states moe-routing-trace-dump-weights",
     "the load of experts is in --metrics-out; leave it out"},
    {"inprocess-restart inprocess-max-iterations= inprocess-monitor-thread-interval= "
     "inprocess-monitor-process-interval= inprocess-progress-watchdog-interval= "
     "inprocess-heartbeat-interval= inprocess-soft-timeout= inprocess-hard-timeout= "
     "inprocess-heartbeat-timeout= inprocess-barrier-timeout= inprocess-completion-timeout= "
     "inprocess-last-call-wait= inprocess-termination-grace-time= inprocess-granularity= "
     "inprocess-active-world-size= inprocess-empty-cuda-cache enable-ft-package "
     "calc-ft-timeouts ft-num-warmup-iters= adlr-autoresume adlr-autoresume-interval=",
     "the launcher starts a failed run again, and the same command with --load goes on; leave "
     "it out"},
    {"error-injection-rate= error-injection-type= result-rejected-tracker-filename= "
     "fault-injector-ranks= fault-injector-num-ranks= fault-injector-fault-types= "
     "fault-injector-fault-probabilities= fault-injector-fault-delay= "
     "fault-injector-delay-start-iteration= fault-injector-mtti-seconds= "
     "fault-injector-offset-seconds= fault-injector-seed=",
     "faults are injected by --inject-fault, for tests of the watchdog; leave it out"},
    {"run-workload-inspector-server", "a run has no server in it; leave it out"},
    {"gpu-sniff-test-interval=",
     "sniff tests of GPUs are not built; run bench/kernels before a job and leave it out"},
    {"outer-dp-sharding-strategy= enable-full-sharding-in-hsdp",
     "replicas across dp neighbours keep whole copies (--num-distributed-optimizer-instances); "
     "leave it out"},
    {"delta-offload-bytes-across-pp-ranks=", "a stage is offloaded like all others; leave it out"},
    {"moe-dispatch-fwd-dtype= moe-combine-bwd-dtype=",
     "payloads of experts travel in the model's dtype; leave it out"},
    {"ddp-param-name-patterns-for-fp32-local-accumulation+",
     "gradients of a buffer have one dtype, --main-grads-dtype; leave it out"},
    {"te-precision-config-file= kitchen-config-file= kitchen-recipe-number= "
     "fp8-quantizer-factory= fp4-quantizer-factory=",
     "precision is chosen for all linear layers (--fp8-format, --first-last-layers-bf16); "
     "leave it out"},
    {"mlp-chunks-for-training= mlp-chunks-for-prefill=",
     "MLPs are computed whole; give --recompute-modules mlp to save memory"},
    {"lang=", "sentences are split by one rule for all languages; leave it out", "", "preprocess"},
    {"max-documents=", "documents are not counted; give a shorter input and leave it out", "",
     "preprocess"},
});

constexpr auto kNotBuilt = std::to_array<MegatronGroup>({
    {"tensor-parallel-num-weight-shards= expert-tensor-parallel-num-weight-shards= "
     "gtp-remat-nccl-ub gtp-expert-remat-nccl-ub "
     "gtp-remat-reduce-scatter-with-fp32-accumulation gtp-remat-opt-in-modules+",
     "weights in shards that are gathered for each use (GTP)",
     "--data-parallel-sharding-strategy optim_grads_params shares them out over data-parallel "
     "ranks"},
    {"reuse-grad-buf-for-mxfp8-param-ag fp4-param-gather",
     "8-bit and 4-bit parameters in the gradients' buffer", "--fp8-param-gather is there for FP8"},
    {"moe-latent-size=", "experts of latents"},
    {"moe-router-quantile-balancing-ema= moe-router-force-biased= moe-enable-routing-replay",
     "routing by quantiles, by bias or from a recording",
     "--moe-router-load-balancing-type and --moe-router-force-load-balancing are there"},
    {"qk-l2-norm", "L2 norms of queries and keys", "--qk-layernorm is there"},
    {"mrope-section+", "multimodal positions"},
    {"mtp-use-repeated-layer mtp-detach-heads mtp-hsm",
     "heads of multi-token prediction that share a layer, are detached or mixed",
     "--mtp-num-layers is there"},
    {"experimental-attention-variant= dsa-indexer-loss-coeff= dsa-indexer-use-sparse-loss "
     "dsa-indexer-topk-freq= dsa-indexer-skip-topk-offset= dsa-indexer-rope-interleaved "
     "dsa-indexer-k-norm-epsilon= dsa-indexer-k-norm-fp32 no-dsa-indexer-rotate-activation "
     "disable-dsa-indexer-rotate-activation no-dsa-indexer-scoring-relu "
     "disable-dsa-indexer-scoring-relu dsa-kernel-backend=",
     "sparse attention (DSA)"},
    {"linear-attention-freq=", "layers of linear attention by their distance",
     "--hybrid-layer-pattern names them: g with the gated delta rule, a with attention"},
    {"gdp-num-householder= gdp-cutedsl-kernel gdp-num-chunk-states-to-recompute=",
     "linear attention with several Householder steps"},
    {"enable-mhc-connections mhc-num-residual-streams= mhc-sinkhorn-iterations= "
     "mhc-init-gating-factor= mhc-recompute-layer-num=",
     "hyper-connections"},
    {"heterogeneous-layers-config-path= heterogeneous-layers-config-encoded-json=",
     "layers of different sizes in one model"},
    {"hybrid-attention-ratio= hybrid-mlp-ratio= mtp-hybrid-override-pattern=",
     "hybrid patterns by ratios, and of multi-token prediction", "--hybrid-layer-pattern"},
    {"mamba-training-ssm-states-dtype= mamba-inference-conv-states-dtype= "
     "mamba-inference-ssm-states-dtype= inference-dynamic-batching-mamba-memory-ratio= "
     "inference-dynamic-batching-prefix-caching-mamba-gb=",
     "states of Mamba layers in other dtypes and memory",
     "they are in fp32, one for each sequence"},
    {"decoder-num-layers= decoder-seq-length= encoder-tensor-model-parallel-size= "
     "encoder-pipeline-model-parallel-size= pipeline-model-parallel-split-rank= "
     "relative-attention-num-buckets= relative-attention-max-distance= vocab-extra-ids= "
     "mask-type= mask-factor= "
     "output-bert-embeddings bert-embedder-type=",
     "models with a decoder behind an encoder (T5), and retrieval by BERT",
     "`data samples --dataset t5` reads T5's data; `train --objective mlm` trains BERT"},
    {"bert-load= ict-head-size= ict-load= biencoder-projection-dim= "
     "biencoder-shared-query-context-model block-data-path= embedding-path= "
     "evidence-data-path= titles-data-path= indexer-batch-size= indexer-log-interval= "
     "query-in-block-prob= retriever-report-topk-accuracies+ retriever-score-scaling "
     "retriever-seq-length= use-one-sent-docs sample-rate= retro-add-retriever "
     "retro-attention-gate retro-cyclic-train-iters= retro-encoder-attention-dropout= "
     "retro-encoder-hidden-dropout= retro-encoder-layers= retro-no-verify-neighbor-count "
     "retro-num-neighbors= retro-num-retrieved-chunks= retro-project-dir= retro-return-doc-ids "
     "retro-workdir=",
     "retrieval (ICT, REALM, Retro)"},
    {"vision-pretraining vision-pretraining-type= vision-backbone-type= swin-backbone-type= "
     "img-h= img-w= patch-dim= num-channels= num-classes= classes-fraction= "
     "data-per-class-fraction= iter-per-epoch= dino-bottleneck-size= dino-freeze-last-layer= "
     "dino-head-hidden-size= dino-local-crops-number= dino-local-img-size= "
     "dino-norm-last-layer dino-teacher-temp= dino-warmup-teacher-temp= "
     "dino-warmup-teacher-temp-epochs=",
     "vision models"},
    {"perform-rl-step grpo-prompts-per-step= grpo-group-size= grpo-iterations= "
     "grpo-clamp-eps-lower= grpo-clamp-eps-upper= grpo-kl-beta= grpo-entropy-term-weight= "
     "grpo-filter-groups-with-same-reward grpo-default-temperature= grpo-default-top-p= "
     "langrl-env-config= langrl-external-server= langrl-inference-server-type= "
     "langrl-inference-server-conversation-template= rl-consumption-granularity= "
     "rl-submission-granularity= rl-default-temperature= rl-default-top-k= rl-default-top-p= "
     "rl-durable-rollout-bank rl-rollout-bank-dir= rl-rollout-bank-max-bytes= "
     "rl-generation-lag= rl-importance-sampling-truncation-coef= "
     "rl-inference-logprobs-is-correction no-rl-inference-logprobs-is-correction "
     "rl-inference-model-unified-memory-level= rl-inference-parsers+ "
     "rl-kv-cache-management-mode= rl-max-inflight-requests= "
     "rl-offload-inference-model-weights-when-idle "
     "no-rl-offload-inference-model-weights-when-idle rl-offload-optimizer-during-inference "
     "rl-offload-kv-cache-during-training rl-remove-kv-cache-during-training "
     "rl-reset-cuda-graphs no-rl-partial-rollouts rl-persist-cuda-graphs "
     "no-rl-persist-cuda-graphs rl-training-cuda-graphs no-rl-training-cuda-graphs rl-profile "
     "rl-profile-dir= rl-prompts-per-eval= rl-sequence-packing-algo= "
     "rl-sequence-packing-max-sequences-per-bin= rl-sequence-packing-bin-size= "
     "rl-use-sequence-packing no-rl-use-sequence-packing rl-skip-bos-token "
     "no-rl-skip-bos-token "
     "rl-calculate-intra-group-similarity rl-generation-batch-size= "
     "rl-num-parallel-generation-batches= rl-num-parallel-generations= "
     "rl-parallel-generation-tasks=",
     "reinforcement learning in `train`", "`bevatron rl` does it, with flags of its own"},
    {"rl-inference-expert-model-parallel-size= rl-inference-expert-tensor-model-parallel-size= "
     "rl-inference-pipeline-model-parallel-size= rl-inference-tensor-model-parallel-size= "
     "refit-method= rl-verify-model-weights-swap no-rl-verify-model-weights-swap",
     "rollouts in another layout than that of the training",
     "`bevatron rl` samples in the layout of the training, on its parameters; leave it out"},
    {"rl-partial-rollouts", "this flag of reinforcement learning",
     "`bevatron rl --partial-rollouts K` samples K tokens of a completion at a time"},
    {"logits-save-top-p= logits-save-top-p-min-k= logits-load-ignore-errors "
     "logits-load-decode-threads= logits-load-prefetch-factor= logits-load-msc-prefetch-depth= "
     "export-kd-cfg= export-kd-teacher-load= export-kd-teacher-model-config=",
     "these flags of distillation",
     "`--objective distill` learns from --teacher-model or --logits-load-dir"},
    {"modelopt-enabled export-model-type= export-legacy-megatron export-te-mcore-model "
     "export-default-te-spec export-kd-teacher-ckpt-format= export-qk-l2-norm "
     "export-moe-apply-probs-on-input export-offline-model qad-train-target= export-quant-cfg= "
     "export-real-quant-cfg= "
     "export-kv-cache-quant= prune-export-config= prune-intermediate-ckpt",
     "quantisation, pruning and export by ModelOpt",
     "`convert --quantize nf4` and `train --quantize-base` are there"},
    {"flextron distillation no-attn-skip flex-strict flex-hetero-mamba flex-hetero-moe-expert "
     "router-std= normalize-router-logits soft-mask prefill-chunk-size= mem-infer-seq-len= "
     "mem-batch-size= original-model-sample-prob= force-router-skip+ force-mlp+ force-mamba+ "
     "force-emb+ skip-num-attn-layer-constraint= skip-total-layer-constraint= disable-budget "
     "curr-iteration= hard-sample-th= router-beta= loss-alpha= router-inter-dim= "
     "linear-scaler-start= linear-scaler-end= override-selected-budget+ router-gbs+ "
     "mamba-per-list+ mlp-per-list+ emb-per-list+ moe-expert-per-list+ memory-profile= "
     "memory-profile-path= bpe-params= bpe-kv-cache= bpe-ssm-cache= bpe-max-buffer= "
     "param-budget-target= layer-ranking-list+ log-budgets basemodel-type= flextron-config-file= "
     "enable-router budget-list+ budget-probs+ budget-type= "
     "tau-init= tau-decay= mlp-int-list+ emb-int-list+ mamba-int-list+ moe-expert-int-list+",
     "nested sub-networks (Flextron)"},
    {"num-speculative-tokens=", "speculative decoding"},
    {"flash-decode cache-mla-latents decode-only-cuda-graphs "
     "inference-batch-times-seqlen-threshold= inference-cuda-graph-all-prefills "
     "inference-cuda-graph-max-tokens= inference-cuda-graph-scope= "
     "inference-disable-ep-consensus no-inference-disable-ep-consensus "
     "inference-disable-triton-nvls-kernels inference-dynamic-batching-async-sched-mode= "
     "inference-dynamic-batching-buffer-guaranteed-fraction= "
     "inference-dynamic-batching-buffer-overflow-factor= "
     "inference-dynamic-batching-chunk-size= inference-dynamic-batching-cuda-graph-max-tokens= "
     "inference-dynamic-batching-cuda-graph-mixed-prefill-count= "
     "inference-dynamic-batching-cuda-graph-sizing-distribution= "
     "inference-dynamic-batching-logprobs-mode= inference-dynamic-batching-num-cuda-graphs= "
     "inference-dynamic-batching-prefix-caching-coordinator-policy= "
     "inference-dynamic-batching-prefix-caching-eviction-policy= "
     "inference-dynamic-batching-prefix-caching-routing-alpha= "
     "inference-dynamic-batching-sampling-backend= "
     "inference-dynamic-batching-track-generated-token-events "
     "inference-dynamic-batching-track-paused-request-events "
     "inference-dynamic-batching-unified-memory-level= inference-flask-server-logging "
     "inference-fuse-tp-communication inference-grouped-gemm-backend= "
     "inference-logging-step-interval= inference-moe-disable-fused-quant-kernels "
     "inference-moe-token-dispatcher-type= inference-shards= inference-text-gen-server-logging "
     "no-inference-text-gen-server-logging inference-use-synchronous-zmq-collectives "
     "no-inference-use-synchronous-zmq-collectives inference-wandb-logging "
     "no-inference-wandb-logging inference-wandb-logging-step-interval= "
     "moe-pad-experts-for-cuda-graph-inference use-same-sampling-seed-across-dp-ranks",
     "this choice of Megatron's inference engine",
     "`bevatron serve` and `bevatron generate` have an engine of their own"},
});

}  // namespace

std::span<const MegatronGroup> renamed_groups() { return kRenamed; }
std::span<const MegatronGroup> refused_groups() { return kRefused; }
std::span<const MegatronGroup> not_built_groups() { return kNotBuilt; }

}  // namespace bev
