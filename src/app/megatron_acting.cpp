#include <array>

#include "app/megatron_tables.h"

namespace bev {

namespace {

constexpr auto kActing = std::to_array<MegatronGroup>({
    {"account-for-embedding-in-pipeline-split account-for-loss-in-pipeline-split "
     "activation-func-clamp-value activation-offload-fraction adam-beta1 adam-beta2 adam-eps "
     "add-qkv-bias apply-layernorm-1p apply-wd-to-qk-layernorm async-save attention-dropout "
     "bert-no-binary-head bf16 chat-template check-for-large-grads check-for-spiky-loss "
     "check-weight-hash-across-dp-replicas-interval ckpt-step clip-grad context-parallel-size "
     "cp-comm-type cpu-offloading-num-layers cuda-graph-impl data-args-path data-cache-path "
     "data-parallel-sharding-strategy data-path dataloader-inter-document-masking "
     "dataloader-type ddp-bucket-size ddp-reduce-scatter-with-fp32-accumulation "
     "decoder-first-pipeline-num-layers decoder-last-pipeline-num-layers decoupled-lr "
     "decoupled-min-lr decrease-batch-size-if-needed delay-wgrad-compute deterministic-mode "
     "disable-bias-linear disable-fp8-wgrad distributed-timeout-minutes "
     "dsa-indexer-head-dim dsa-indexer-n-heads dsa-indexer-topk "
     "embedding-init-method-std encoder-num-layers encoder-seq-length end-weight-decay "
     "eod-mask-loss eval-global-batch-size eval-interval eval-iters eval-micro-batch-size "
     "exit-duration-in-mins exit-interval exit-on-missing-checkpoint exit-signal exp-avg-dtype "
     "exp-avg-sq-dtype expert-model-parallel-size expert-tensor-parallel-size ffn-hidden-size "
     "fim-data fim-eod-token fim-fragment-rate fim-middle-token fim-no-prefix fim-pad-token "
     "fim-prefix-token fim-rate fim-split-sample fim-spm-rate fim-suffix-token "
     "fine-grained-activation-offloading finetune first-last-layers-bf16 fp16 fp4-format "
     "fp4-recipe fp8-amax-compute-algo fp8-amax-history-len fp8-format fp8-interval fp8-margin "
     "fp8-param-gather fp8-recipe freeze-all-layers full-validation global-batch-size "
     "glu-linear-offset grad-reduce-in-bf16 group-query-attention head-lr-mult hidden-dropout "
     "hidden-size hierarchical-context-parallel-sizes hysteresis init-method-std "
     "init-method-xavier-uniform initial-loss-scale iterations-to-skip kv-channels "
     "kv-lora-rank lion-beta1 lion-beta2 load log-interval log-memory-interval "
     "log-num-zeros-in-grad log-params-norm log-progress log-throughput loss-scale "
     "loss-scale-window lr lr-decay-iters lr-decay-samples lr-decay-style lr-warmup-fraction "
     "lr-warmup-init lr-warmup-iters lr-warmup-samples lr-wsd-decay-iters lr-wsd-decay-samples "
     "lr-wsd-decay-style main-grads-dtype main-params-dtype max-position-embeddings "
     "megatron-fsdp-main-grads-dtype megatron-fsdp-main-params-dtype megatron-fsdp-grad-comm-dtype "
     "mask-prob merge-file "
     "micro-batch-size microbatch-group-size-per-virtual-pipeline-stage min-loss-scale min-lr "
     "min-offloaded-tensor-size mock-data moe-apply-probs-on-input moe-aux-loss-coeff "
     "moe-expert-capacity-factor "
     "moe-expert-rank-capacity-factor moe-ffn-hidden-size moe-input-jitter-eps moe-layer-freq "
     "moe-layer-recompute moe-pad-expert-input-to-capacity moe-router-bias-update-rate "
     "moe-router-dtype moe-router-enable-expert-bias moe-router-force-load-balancing "
     "moe-router-group-topk moe-router-load-balancing-type moe-router-num-groups "
     "moe-router-pre-softmax moe-router-score-function moe-router-topk "
     "moe-router-topk-scaling-factor moe-shared-expert-gate "
     "moe-shared-expert-intermediate-size moe-shared-expert-overlap moe-token-dispatcher-type "
     "moe-token-drop-policy moe-upcycling-granularity moe-use-upcycling moe-z-loss-coeff "
     "mscale mscale-all-dim mtp-loss-scaling-factor mtp-num-layers multi-latent-attention "
     "multiple-validation-sets muon-coefficient-type muon-extra-scale-factor "
     "muon-fp32-matmul-prec muon-momentum muon-nesterov muon-no-split-qkv muon-num-ns-steps "
     "muon-scalar-optimizer muon-scale-mode muon-tp-mode muon-use-nesterov "
     "mup-attn-scale-power mup-base-head-dim mup-base-hidden-size mup-embedding-mult "
     "mup-output-mult no-check-for-nan-in-loss-and-grad no-data-sharding no-fp8-wgrad "
     "no-load-optim no-load-rng no-overlap-p2p-communication no-rope-freq no-save-optim "
     "no-yarn-correction-range-round-to-int non-persistent-ckpt-type "
     "non-persistent-global-ckpt-dir non-persistent-local-ckpt-dir "
     "non-persistent-save-interval norm-epsilon normalization null-tokenizer-eod-id "
     "null-tokenizer-pad-id num-attention-heads num-distributed-optimizer-instances "
     "num-experts num-layers num-layers-at-end-in-bf16 num-layers-at-start-in-bf16 "
     "num-layers-per-virtual-pipeline-stage num-query-groups "
     "num-virtual-stages-per-pipeline-rank num-workers offload-modules optimizer "
     "optimizer-cpu-offload optimizer-offload-fraction overlap-grad-reduce "
     "overlap-moe-expert-parallel-comm overlap-p2p-communication overlap-param-gather "
     "override-opt_param-scheduler per-split-data-args-path persistent-save-interval "
     "pipeline-model-parallel-layout pipeline-model-parallel-size position-embedding-type "
     "profile profile-step-end profile-step-start q-lora-rank qk-head-dim qk-layernorm "
     "qk-pos-emb-head-dim quick-geglu rampup-batch-size recompute-activations "
     "recompute-granularity recompute-method recompute-modules recompute-num-layers "
     "replication replication-jump reset-attention-mask reset-position-ids rope-scaling-factor "
     "rope-type rotary-base rotary-interleaved rotary-percent rotary-scaling-factor save "
     "save-activations-interval save-dgrads-interval save-interval save-retain-interval "
     "save-wgrads-interval seed seq-length sequence-parallel sgd-momentum short-seq-prob "
     "skip-train "
     "softmax-type split squared-relu start-eval-at-iter start-weight-decay "
     "step-batch-size-schedule swiglu tensor-model-parallel-size tensorboard-dir "
     "tensorboard-log-interval test-data-path tiktoken-pattern tiktoken-special-tokens "
     "tokenizer-model tp-comm-overlap train-data-path train-iters train-samples "
     "untie-embeddings-and-output-weights use-checkpoint-args "
     "use-checkpoint-opt_param-scheduler use-distributed-optimizer use-mup use-rope-scaling "
     "use-rotary-position-embeddings use-torch-fsdp2 use-tp-pp-dp-mapping v-head-dim "
     "valid-data-path "
     "validation-set-names vocab-file vocab-size weight-decay weight-decay-incr-style "
     "window-attn-skip-freq window-size yarn-beta-fast yarn-beta-slow "
     "yarn-correction-range-round-to-int yarn-original-max-position-embeddings",
     ""},
    {"input json-keys output-prefix append-eod split-sentences keep-newlines workers partitions",
     "", "", "preprocess"},
});

}  // namespace

std::span<const MegatronGroup> acting_groups() { return kActing; }

}  // namespace bev
