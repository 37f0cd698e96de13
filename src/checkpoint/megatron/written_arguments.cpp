#include "checkpoint/megatron/written_arguments.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <set>

#include "base/error.h"
#include "base/fields.h"
#include "bridge/torch/torch_archive.h"
#include "bridge/torch/torch_writer.h"
#include "checkpoint/megatron/run_arguments.h"
#include "models/families/family.h"

namespace bev {

namespace {

// Fields of the model that are no arguments of Megatron's, or are there in other words.
constexpr std::string_view kOtherWords =
    "model-family rotary-base-local scale-attn-by-inverse-layer-idx attn-logit-softcapping causal "
    "latent-norm-epsilon norm-placement parallel-residual activation gated add-proj-bias "
    "add-mlp-bias value-head "
    "embedding-multiplier logit-scale final-logit-softcapping num-labels pad-token padding-row "
    "softmax-scale moe-router-norm-topk-prob moe-router-norm-single-prob "
    "moe-router-group-score-experts num-query-groups vocab-size window-size no-rope-freq "
    "qk-norm-type residual-multiplier add-head-bias query-scaling-beta query-scaling-period "
    "query-scaling-shift query-scaling-all-layers moe-apply-probs-on-input dsa-indexer-topk "
    "dsa-indexer-n-heads dsa-indexer-head-dim dsa-indexer-shared-layers";
// Fields without effect on what a forward pass gives.
constexpr std::string_view kWithoutEffect = "model-family pad-token padding-row";
// Numbers whose 0, or less, is Megatron's None.
constexpr std::string_view kNoneIfZero =
    "num-experts moe-ffn-hidden-size moe-router-num-groups moe-router-group-topk "
    "moe-shared-expert-intermediate-size moe-z-loss-coeff moe-input-jitter-eps "
    "moe-expert-capacity-factor mtp-num-layers q-lora-rank activation-func-clamp-value "
    "embedding-init-method-std mup-base-hidden-size";
// Arguments of the run outside of model and optimizer that mean the same.
constexpr std::string_view kOfRun =
    "micro-batch-size global-batch-size seq-length split data-path train-iters train-samples "
    "eval-interval eval-iters seed dataloader-type use-distributed-optimizer sequence-parallel "
    "context-parallel-size optimizer lr min-lr lr-decay-style lr-decay-iters lr-decay-samples "
    "lr-warmup-iters lr-warmup-samples lr-warmup-fraction lr-warmup-init lr-wsd-decay-style "
    "lr-wsd-decay-iters lr-wsd-decay-samples weight-decay start-weight-decay end-weight-decay "
    "weight-decay-incr-style adam-beta1 adam-beta2 adam-eps clip-grad loss-scale "
    "initial-loss-scale min-loss-scale loss-scale-window hysteresis";

bool lists(std::string_view names, std::string_view name) {
  for (const std::string& one : split(names, ' ')) {
    if (one == name) return true;
  }
  return false;
}

std::string underscored(std::string name) {
  std::ranges::replace(name, '-', '_');
  return name;
}

template <class T>
bool parse_whole(std::string_view text, T& out) {
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size();
}

// Values of flags, as the Python values that argparse makes of them.
void put_value(PickleWriter& out, std::string_view text) {
  std::int64_t whole = 0;
  double number = 0;
  if (text.empty()) return out.none();
  if (text == "true" || text == "false") return out.boolean(text == "true");
  if (parse_whole(text, whole)) return out.integer(whole);
  if (parse_whole(text, number)) return out.number(number);
  out.text(text);
}

// A list of one item is that item.
void put_list(PickleWriter& out, std::string_view text) {
  std::vector<std::string> items = split(text, ',');
  if (text.empty() || items.size() == 1) return put_value(out, text);
  out.begin_list();
  for (const std::string& item : items) put_value(out, item);
  out.end_list();
}

// argparse.Namespace, each name once.
class Arguments {
 public:
  explicit Arguments(PickleWriter& out) : out_(out) {}

  // True if the value has to be written now.
  bool name(const std::string& argument) {
    if (!written_.insert(argument).second) return false;
    out_.text(argument);
    return true;
  }
  void flag(const std::string& argument, bool value) {
    if (name(argument)) out_.boolean(value);
  }
  void integer(const std::string& argument, std::int64_t value) {
    if (name(argument)) out_.integer(value);
  }
  void text(const std::string& argument, std::string_view value) {
    if (name(argument)) out_.text(value);
  }
  void none(const std::string& argument) {
    if (name(argument)) out_.none();
  }
  void number(const std::string& argument, double value) {
    if (name(argument)) out_.number(value);
  }
  PickleWriter& out() { return out_; }

 private:
  PickleWriter& out_;
  std::set<std::string> written_;
};

void put_activation(const ModelConfig& model, Arguments& args) {
  args.flag("swiglu", model.gated && model.activation == Activation::kSilu);
  args.flag("quick_geglu", model.gated && model.activation == Activation::kQuickGelu);
  args.flag("squared_relu", model.activation == Activation::kSquaredRelu);
  args.flag("bias_gelu_fusion", model.activation == Activation::kGeluTanh);
}

void put_positions(const ModelConfig& model, Arguments& args) {
  const RopeScaling& scaling = model.rope_scaling;
  args.flag("add_position_embedding", model.position_embedding_type == PositionKind::kLearned);
  args.flag("use_rope_scaling", scaling.kind == RopeScalingKind::kLlama3);
  // Megatron reads these numbers for latent attention only.
  bool yarn = scaling.kind == RopeScalingKind::kYarn && model.multi_latent_attention;
  args.text("rope_type", yarn ? "yarn" : "rope");
  if (scaling.kind == RopeScalingKind::kLlama3) args.number("rope_scaling_factor", scaling.factor);
  if (!yarn) return;
  args.number("rotary_scaling_factor", scaling.factor);
  args.integer("original_max_position_embeddings", scaling.original_max_positions);
  args.number("beta_fast", scaling.beta_fast);
  args.number("beta_slow", scaling.beta_slow);
  args.number("mscale", scaling.mscale);
  args.number("mscale_all_dim", scaling.mscale_all_dim);
}

void put_model(ModelConfig model, Arguments& args) {
  std::int64_t groups = model.kv_heads();
  args.flag("group_query_attention", groups < model.num_attention_heads);
  args.integer("num_query_groups", groups);
  args.integer("padded_vocab_size", model.vocab_size);
  args.integer("vocab_size", model.vocab_size);
  args.integer("make_vocab_size_divisible_by", 1);
  args.name("window_size");
  if (model.window_size > 0) {
    args.out().integers(std::array<std::int64_t, 2>{model.window_size, 0});
  } else {
    args.out().none();
  }
  put_activation(model, args);
  put_positions(model, args);
  FieldList list;
  model.fields(list);
  for (const auto& entry : list.entries()) {
    const Field& field = entry->field;
    bool here = entry->section == "model" || entry->section == MoeConfig::kSection ||
                entry->section == MoeTraining::kSection;
    if (!here || lists(kOtherWords, field.name())) continue;
    if (!args.name(underscored(field.name()))) continue;
    double number = 0;
    bool zero =
        lists(kNoneIfZero, field.name()) && parse_whole(field.text(), number) && number <= 0;
    bool none = zero || (field.name() == "moe-router-dtype" && field.text() == "none");
    if (none) {
      args.out().none();
    } else if (field.is_list()) {
      put_list(args.out(), field.text());
    } else {
      put_value(args.out(), field.text());
    }
  }
}

std::string value_of(const Manifest& about, std::string_view name) {
  auto found = std::ranges::find(about.config, name, &ConfigEntry::name);
  return found == about.config.end() ? "" : found->value;
}
double number_of(const Manifest& about, std::string_view name, double otherwise) {
  double number = 0;
  return parse_whole(value_of(about, name), number) ? number : otherwise;
}

void put_run(const Manifest& about, const MegatronRun& run, Dtype weights, bool optimizer,
             Arguments& args) {
  args.integer("tensor_model_parallel_size", run.tp);
  args.integer("pipeline_model_parallel_size", run.pp);
  args.none("virtual_pipeline_model_parallel_size");
  args.integer("expert_model_parallel_size", run.ep);
  args.integer("expert_tensor_parallel_size", run.etp);
  args.integer("iteration", about.state.iteration);
  args.integer("consumed_train_samples", about.state.consumed_samples);
  args.integer("consumed_valid_samples", 0);
  args.flag("bf16", weights == Dtype::kBf16);
  args.flag("fp16", weights == Dtype::kF16);
  if (args.name("params_dtype")) args.out().global("torch", torch_type_name(weights));
  args.text("ckpt_format", "torch_dist");
  args.text("transformer_impl", run.transformer_engine ? "transformer_engine" : "local");
  // There is no state of random numbers; Megatron asks for none then.
  args.flag("no_save_rng", true);
  args.flag("no_save_optim", !optimizer);
  args.integer("seed", about.state.seed);
  for (const std::string& name : split(kOfRun, ' ')) {
    std::string text = value_of(about, name);
    if (!text.empty() && args.name(underscored(name))) put_value(args.out(), text);
  }
}

// The numbers of opt_param_scheduler; steps are whole where they can be.
void put_scheduler(TrainingState state, PickleWriter& out) {
  FieldList list;
  state.fields(list);
  out.begin_dict();
  for (const char* name :
       {"max_lr", "min_lr", "lr_warmup_steps", "lr_decay_steps", "lr_decay_style", "start_wd",
        "end_wd", "wd_incr_style", "wd_incr_steps"}) {
    out.text(name);
    const Field& field = *list.find(name);
    double number = 0;
    bool steps = std::string_view(name).ends_with("_steps");
    if (!parse_whole(field.text(), number)) {
      out.text(field.text());
    } else if (steps && number == std::floor(number)) {
      out.integer(std::llround(number));
    } else {
      out.number(number);
    }
  }
  out.text("num_steps");
  out.integer(state.scheduled_samples);
  out.end_dict();
}

// A group of parameters as Apex, Transformer Engine and torch have them.
void put_group(const Manifest& about, bool decays, bool experts, PickleWriter& out) {
  const TrainingState& state = about.state;
  auto flag = [&](const char* name, bool value) {
    out.text(name);
    out.boolean(value);
  };
  auto number = [&](const char* name, double value) {
    out.text(name);
    out.number(value);
  };
  out.begin_dict();
  flag("is_expert_parallel", experts);
  flag("default_config", true);
  number("wd_mult", decays ? 1 : 0);
  number("lr_mult", 1);
  flag("is_decoupled_lr", false);
  number("max_lr", state.lr.max_lr);
  number("min_lr", state.lr.min_lr);
  bool scheduled = state.lr.problems().empty();
  number("lr", scheduled ? state.lr.lr(state.scheduled_samples) : state.lr.max_lr);
  out.text("betas");
  out.begin_tuple();
  out.number(number_of(about, "adam-beta1", 0.9));
  out.number(number_of(about, "adam-beta2", 0.999));
  out.end_tuple();
  number("eps", number_of(about, "adam-eps", 1e-8));
  bool scheduled_decay = state.weight_decay.problems().empty();
  double decay = scheduled_decay ? state.weight_decay.weight_decay(state.scheduled_samples) : 0;
  number("weight_decay", decays ? decay : 0);
  flag("bias_correction", true);
  for (const char* name : {"amsgrad", "maximize", "capturable", "differentiable"}) {
    flag(name, false);
  }
  for (const char* name : {"foreach", "fused"}) {
    out.text(name);
    out.none();
  }
  flag("decoupled_weight_decay", true);
  out.text("step");
  out.integer(state.updates);
  out.end_dict();
}

constexpr const char* kScaleKey = "0";

void put_scaler(const LossScaler::State& scaler, PickleWriter& out) {
  out.begin_dict();
  out.text("scale");
  put_tensor(out, {kScaleKey, Dtype::kF32, {1}});
  out.text("growth_tracker");
  out.integer(scaler.growth_counter);
  out.text("hysteresis_tracker");
  out.integer(scaler.hysteresis_counter);
  out.end_dict();
}

void put_optimizer(const Manifest& about, bool experts, bool scaled, PickleWriter& out) {
  out.begin_dict();
  out.text("optimizer");
  out.begin_dict();
  out.text("param_groups");
  out.begin_list();
  for (bool decays : {true, false}) put_group(about, decays, experts, out);
  out.end_list();
  out.end_dict();
  if (scaled) {
    out.text("grad_scaler");
    put_scaler(about.state.scaler, out);
  }
  out.text("param_state_sharding_type");
  out.text("fully_reshardable");
  out.end_dict();
}

// What Megatron's loader asks how the tensors are divided and named.
void put_content(bool optimizer, PickleWriter& out) {
  out.text("content_metadata");
  out.begin_dict();
  out.text("singleton_local_shards");
  out.boolean(false);
  out.text("chained_optim_avoid_prefix");
  out.boolean(true);
  if (optimizer) {
    out.text("distrib_optim_sharding_type");
    out.text("fully_reshardable");
    out.text("distrib_optim_fully_reshardable_mem_efficient");
    out.boolean(false);
  }
  out.end_dict();
}

// Reads the arguments as any reader would, and refuses a model that they do not describe.
void check_expressed(const ModelConfig& model, const std::string& file) {
  constexpr const char* kWhere = "--ckpt-format torch_dist";
  TorchArchive archive(std::as_bytes(std::span(file)), kWhere);
  ModelConfig read = model_of_arguments(*archive.root().find("args"), model.vocab_size, kWhere);
  std::vector<std::string> lost;
  for (const std::string& name : differing_fields(read, canonical(model))) {
    if (!lists(kWithoutEffect, name)) lost.push_back("--" + name);
  }
  BEV_CHECK(lost.empty(), ErrorKind::kConfig, kWhere, ": Megatron's arguments cannot express ",
            join(lost, ", "), " of this model");
}

}  // namespace

std::string megatron_common_file(const ModelConfig& model, const Manifest& about,
                                 const MegatronRun& run, Dtype weights, bool optimizer) {
  PickleWriter out;
  out.begin_dict();
  out.text("args");
  out.begin_object("argparse", "Namespace");
  out.begin_dict();
  Arguments args(out);
  put_model(canonical(model), args);
  put_run(about, run, weights, optimizer, args);
  out.end_dict();
  out.end_object();
  out.text("checkpoint_version");
  out.number(3.0);
  out.text("iteration");
  out.integer(about.state.iteration);
  bool scaled = optimizer && weights == Dtype::kF16;
  if (optimizer) {
    out.text("optimizer");
    // With experts on several ranks, their parameters have an optimizer of their own.
    bool chained = model.moe.any() && run.ep > 1;
    if (chained) out.begin_dict();
    for (bool experts : {false, true}) {
      if (experts && !chained) continue;
      if (chained) out.integer(experts ? 1 : 0);
      put_optimizer(about, experts, scaled, out);
    }
    if (chained) out.end_dict();
    out.text("opt_param_scheduler");
    put_scheduler(about.state, out);
  }
  out.text("num_floating_point_operations_so_far");
  out.integer(0);
  put_content(optimizer, out);
  out.end_dict();
  std::vector<ArchiveStorage> storages;
  if (scaled) {
    auto scale = static_cast<float>(about.state.scaler.scale);
    storages.push_back({kScaleKey, std::string(sizeof scale, '\0')});
    std::memcpy(storages.back().bytes.data(), &scale, sizeof scale);
  }
  std::string file = object_archive("common", out.take(), storages);
  check_expressed(model, file);
  return file;
}

}  // namespace bev
