#include "app/idle_flags.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "app/options.h"
#include "app/run_config.h"
#include "base/fields.h"
#include "base/text.h"

namespace bev {

namespace {

// A feature of a run, and the flags that have no effect without it.
struct Part {
  bool (*there)(const RunConfig&);
  std::string_view what;      // "--x is for ..."
  std::string_view give;      // the flag that enables the feature
  std::string_view flags;     // separated by spaces
  std::string_view sections;  // sections whose flags belong to the feature too, separated by commas
  std::string_view switch_by;  // the flag that enables or disables it
};

bool experts(const RunConfig& run) { return run.model.moe.any(); }
bool latents(const RunConfig& run) { return run.model.multi_latent_attention; }
bool rotary(const RunConfig& run) {
  return run.model.position_embedding_type == PositionKind::kRope || latents(run);
}
template <RopeScalingKind... Kinds>
bool scaled_by(const RunConfig& run) {
  return ((run.model.rope_scaling.kind == Kinds) || ...);
}
bool scaled(const RunConfig& run) { return !scaled_by<RopeScalingKind::kDefault>(run); }
bool eight_bits(const RunConfig& run) { return run.fp8.fp8_format != Fp8FormatChoice::kNone; }
bool few_bits(const RunConfig& run) { return run.fp8.used(); }
template <OptimizerKind... Kinds>
bool uses(const RunConfig& run) {
  return ((run.optim.optimizer == Kinds) || ...);
}
bool uses_lion(const RunConfig& run) {
  return uses<OptimizerKind::kLion>(run) ||
         (uses<OptimizerKind::kMuon>(run) &&
          run.optim.muon.scalar_optimizer == ScalarOptimizer::kLion);
}
bool uses_adam(const RunConfig& run) {
  using Kind = OptimizerKind;
  return uses<Kind::kAdamW, Kind::kAdamL2, Kind::kSoap>(run) ||
         (uses<Kind::kMuon>(run) && !uses_lion(run));
}
template <RecomputeGranularity Granularity>
bool recomputes(const RunConfig& run) {
  return run.parallel.recompute_granularity == Granularity;
}
bool saves(const RunConfig& run) {
  return !run.checkpoint.save.empty() || run.checkpoint.non_persistent_save_interval > 0;
}
bool saves_often(const RunConfig& run) { return run.checkpoint.non_persistent_save_interval > 0; }
bool loads(const RunConfig& run) { return !run.checkpoint.load.empty(); }

using Kind = RopeScalingKind;

bool evaluates(const RunConfig& run) {
  const TrainConfig& train = run.train;
  return train.eval_interval > 0 || train.eval_iters > 0 || train.eval.full_validation ||
         train.eval.skip_train || !run.data.test_data_path.empty();
}

constexpr auto kParts = std::to_array<Part>({
    {experts, "experts, of which the model has none", "--num-experts",
     "moe-token-dispatcher-type moe-shared-expert-overlap moe-expert-rank-capacity-factor",
     "mixture of experts,balance of experts", "num-experts"},
    {latents, "latent attention", "--multi-latent-attention",
     "q-lora-rank kv-lora-rank qk-head-dim qk-pos-emb-head-dim v-head-dim latent-norm-epsilon", "",
     "multi-latent-attention"},
    {rotary, "rotary positions", "--position-embedding-type rope",
     "rotary-base rotary-base-local rotary-percent rotary-interleaved", "",
     "position-embedding-type"},
    {scaled, "scaled rotary frequencies", "--rope-scaling-type",
     "rope-scaling-factor rope-original-max-position-embeddings", "", "rope-scaling-type"},
    {scaled_by<Kind::kLlama3>, "Llama 3's scaling", "--rope-scaling-type llama3",
     "rope-low-freq-factor rope-high-freq-factor", "", "rope-scaling-type"},
    {scaled_by<Kind::kYarn>, "yarn", "--rope-scaling-type yarn",
     "yarn-beta-fast yarn-beta-slow mscale mscale-all-dim yarn-correction-range-round-to-int", "",
     "rope-scaling-type"},
    {scaled_by<Kind::kYarn, Kind::kLongRope>, "yarn and longrope", "--rope-scaling-type",
     "rope-attention-factor", "", "rope-scaling-type"},
    {scaled_by<Kind::kLongRope>, "longrope", "--rope-scaling-type longrope",
     "longrope-short-factor longrope-long-factor", "", "rope-scaling-type"},
    {[](const RunConfig& run) { return run.model.mtp_num_layers > 0; }, "multi-token prediction",
     "--mtp-num-layers", "mtp-loss-scaling-factor", "", "mtp-num-layers"},
    {[](const RunConfig& run) { return run.model.lora.used(); }, "low-rank adapters",
     "--lora-rank or --adapter", "export-adapter lora-plus-ratio", "lora", "lora-rank"},
    {eight_bits, "8-bit floats", "--fp8-format", "fp8-recipe", "", "fp8-format"},
    {few_bits, "8-bit floats", "--fp8-format",
     "fp8-margin fp8-wgrad fp8-param-gather first-last-layers-bf16", "", "fp8-format"},
    {[](const RunConfig& run) {
       return run.fp8.used() && run.fp8.scaling() == Fp8Scaling::kDelayed;
     },
     "delayed scales of 8-bit floats", "--fp8-format with --fp8-recipe delayed",
     "fp8-interval fp8-amax-history-len fp8-amax-compute-algo", "", "fp8-format"},
    {[](const RunConfig& run) { return run.fp8.first_last_layers_bf16; },
     "layers that stay in the model's precision", "--first-last-layers-bf16",
     "num-layers-at-start-in-bf16 num-layers-at-end-in-bf16", "", "first-last-layers-bf16"},
    {[](const RunConfig& run) { return run.fp8.emulates_fp4(); }, "4-bit floats", "--fp4-format",
     "fp4-recipe", "", "fp4-format"},
    {uses_adam, "Adam", "--optimizer adam", "adam-beta1 adam-beta2 adam-eps", "", "optimizer"},
    {uses<OptimizerKind::kSgd>, "SGD", "--optimizer sgd", "sgd-momentum", "", "optimizer"},
    {uses_lion, "Lion", "--optimizer lion", "lion-beta1 lion-beta2", "", "optimizer"},
    {uses<OptimizerKind::kMuon>, "Muon", "--optimizer muon",
     "muon-momentum muon-nesterov muon-split-qkv muon-coefficient-type muon-num-ns-steps "
     "muon-scale-mode muon-extra-scale-factor muon-fp32-matmul-prec muon-tp-mode "
     "muon-scalar-optimizer",
     "", "optimizer"},
    {uses<OptimizerKind::kAdafactor>, "Adafactor", "--optimizer adafactor",
     "adafactor-beta2-decay adafactor-eps1 adafactor-eps2 adafactor-clip-threshold", "",
     "optimizer"},
    {uses<OptimizerKind::kSoap>, "SOAP", "--optimizer soap", "soap-shampoo-beta", "", "optimizer"},
    {[](const RunConfig& run) { return run.optim.lr_decay_style == LrSchedule::Style::kWsd; },
     "the schedule WSD", "--lr-decay-style WSD",
     "lr-wsd-decay-style lr-wsd-decay-iters lr-wsd-decay-samples", "", "lr-decay-style"},
    {[](const RunConfig& run) { return run.optim.groups.decoupled_lr >= 0; },
     "a learning rate of word embeddings and head", "--decoupled-lr", "decoupled-min-lr", "",
     "decoupled-lr"},
    {recomputes<RecomputeGranularity::kFull>, "whole layers", "--recompute-granularity full",
     "recompute-method recompute-num-layers", "", "recompute-granularity"},
    {recomputes<RecomputeGranularity::kSelective>, "parts of layers",
     "--recompute-granularity selective", "recompute-modules", "", "recompute-granularity"},
    {[](const RunConfig& run) { return run.parallel.offload.any(); }, "activations in host memory",
     "--cpu-offloading-num-layers or --fine-grained-activation-offloading",
     "min-offloaded-tensor-size", "", "cpu-offloading-num-layers"},
    {[](const RunConfig& run) { return run.parallel.offload.fine_grained_activation_offloading; },
     "parts of layers in host memory", "--fine-grained-activation-offloading",
     "activation-offload-fraction", "", "fine-grained-activation-offloading"},
    {[](const RunConfig& run) { return !run.data.sft_data.empty() || run.data.preferences.any(); },
     "conversations", "--sft-data or --objective", "chat-template", "", "sft-data"},
    {[](const RunConfig& run) { return !run.data.sft_data.empty(); }, "conversations", "--sft-data",
     "sft-too-long", "", "sft-data"},
    {[](const RunConfig& run) {
       return run.data.preferences.any() || run.data.preferences.text_task();
     },
     "preferences or labels", "--objective", "data valid-data", "", "objective"},
    {[](const RunConfig& run) { return run.data.preferences.any(); }, "preferences", "--objective",
     "ref-model max-prompt-length max-completion-length", "", "objective"},
    {[](const RunConfig& run) { return run.data.preferences.text_task().has_value(); },
     "examples with labels", "--objective classification",
     "text-column pair-column label-column label-names class-weights", "", "objective"},
    {[](const RunConfig& run) { return run.data.preferences.masks(); }, "masked samples",
     "--objective mlm",
     "mask-prob short-seq-prob bert-binary-head masking-max-ngram "
     "masking-full-word masking-permutation masking-longer-ngrams masking-geometric",
     "", "objective"},
    {[](const RunConfig& run) {
       return run.data.preferences.distills() || run.data.preferences.rollouts;
     },
     "a teacher", "--objective distill",
     "teacher-model divergence jsd-beta distill-temperature temperature-squared distill-top-k "
     "distill-tail distill-alpha",
     "", "objective"},
    {[](const RunConfig& run) { return run.loader.dataloader_type == OrderKind::kCyclic; },
     "samples in a random order", "--dataloader-type cyclic", "data-sharding", "",
     "dataloader-type"},
    {[](const RunConfig& run) { return !run.profile.profile_trace.empty(); }, "a trace",
     "--profile-trace FILE", "profile-step-start profile-step-end", "", "profile-trace"},
    {[](const RunConfig& run) { return !run.log.tensorboard_dir.empty(); }, "TensorBoard",
     "--tensorboard-dir DIR", "tensorboard-log-interval", "", "tensorboard-dir"},
    {evaluates, "validation and test", "--eval-interval",
     "eval-global-batch-size eval-micro-batch-size start-eval-at-iter", "", "eval-interval"},
    {saves, "checkpoints", "--save DIR",
     "save-retry-interval save-optim save-staging-mb log-progress", "", "save"},
    {[](const RunConfig& run) { return !run.checkpoint.save.empty(); }, "the folder of a run",
     "--save DIR", "existing-run", "", "save"},
    {saves_often, "checkpoints of which only the last is kept", "--non-persistent-save-interval",
     "non-persistent-ckpt-type non-persistent-global-ckpt-dir non-persistent-local-ckpt-dir", "",
     "non-persistent-save-interval"},
    {[](const RunConfig& run) {
       return saves_often(run) &&
              run.checkpoint.non_persistent_ckpt_type == NonPersistentKind::kLocal;
     },
     "checkpoints on the disks of machines",
     "--non-persistent-save-interval with --non-persistent-ckpt-type local",
     "replication replication-jump", "", "non-persistent-save-interval"},
    {loads, "a checkpoint to go on from", "--load DIR",
     "load-optim load-rng override-opt-param-scheduler use-checkpoint-opt-param-scheduler", "",
     "load"},
});

bool lists(std::string_view names, char separator, std::string_view name) {
  const std::vector<std::string> all = split(names, separator);
  return std::ranges::find(all, name) != all.end();
}

bool belongs(const Part& part, const FieldList::Entry& entry) {
  const std::string& name = entry.field.name();
  return name != part.switch_by &&
         (lists(part.flags, ' ', name) || lists(part.sections, ',', entry.section));
}

// True if the user explicitly disabled the feature.
bool switched_off(const Part& part, const Options& options, const FieldList& list) {
  if (!options.given(part.switch_by)) return false;
  const std::string value = list.find(part.switch_by)->text();
  constexpr std::string_view kOff[] = {"", "0", "none", "false", "default"};
  return std::ranges::find(kOff, value) != std::end(kOff);
}

}  // namespace

std::vector<std::string> idle_flags(const Options& options, const FieldList& list,
                                    const RunConfig& run) {
  std::vector<std::string> out;
  for (const Setting& setting : options.settings()) {
    if (setting.recorded) continue;  // flags given now may have made it idle
    const FieldList::Entry& entry = *list.find_entry(setting.field);
    for (const Part& part : kParts) {
      if (!belongs(part, entry) || part.there(run) || switched_off(part, options, list)) continue;
      out.push_back(concat(setting.origin, ": --", setting.field, " is for ", part.what, "; give ",
                           part.give, " or leave it out"));
    }
  }
  return out;
}

}  // namespace bev
