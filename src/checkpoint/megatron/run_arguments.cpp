#include "checkpoint/megatron/run_arguments.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/fields.h"
#include "base/json_check.h"
#include "models/families/family.h"
#include "models/families/hf_config.h"
#include "optim/config.h"

namespace bev {

namespace {

std::string underscored(std::string name) {
  std::ranges::replace(name, '-', '_');
  return name;
}

// The value in the syntax of flags; "" for None and for what no flag takes.
std::string flag_text(const PickleValue& value) {
  switch (value.kind) {
    case PickleKind::kBool:
      return value.integer != 0 ? "true" : "false";
    case PickleKind::kInt:
      return concat(value.integer);
    case PickleKind::kFloat:
      return concat(value.number);
    case PickleKind::kText:
      return std::string(value.text);
    case PickleKind::kList:
    case PickleKind::kTuple: {
      std::vector<std::string> items;
      for (const PickleValue* item : value.items) {
        bool nested = item->is(PickleKind::kList) || item->is(PickleKind::kTuple);
        items.push_back(nested ? "" : flag_text(*item));
      }
      return join(items, ",");
    }
    default:
      return "";
  }
}

const PickleValue* argument(const PickleValue& args, std::string_view name) {
  const PickleValue* value = args.find(name);
  return value == nullptr || value->is(PickleKind::kNone) ? nullptr : value;
}
bool is_on(const PickleValue& args, std::string_view name) {
  const PickleValue* value = argument(args, name);
  return value != nullptr && value->is(PickleKind::kBool) && value->integer != 0;
}
std::int64_t number_of(const PickleValue& args, std::string_view name, std::int64_t otherwise) {
  const PickleValue* value = argument(args, name);
  return value == nullptr ? otherwise : value->as_int().value_or(otherwise);
}

// Arguments that change the computation in a way that there is not here.
constexpr auto kUnsupported = std::to_array<std::string_view>({
    "apply_residual_connection_post_layernorm",
    "attention_output_gate",
    "qk_l2_norm",
    "moe_latent_size",
    "is_hybrid_model",
    "hybrid_layer_pattern",
    "hybrid_override_pattern",
    "linear_attention_freq",
    "linear_attention_type",
    "experimental_attention_variant",
    "heterogeneous_layers_config_path",
    "heterogeneous_layers_config_encoded_json",
    "retro_add_retriever",
    "no_rope_freq",
    "encoder_num_layers_only",
});

void check_supported(const PickleValue& args, const std::string& where) {
  for (std::string_view name : kUnsupported) {
    const PickleValue* value = argument(args, name);
    bool off = value == nullptr || (value->as_int() && *value->as_int() == 0);
    BEV_CHECK(off, ErrorKind::kInput, where, ": was trained with ", name, " ",
              quote(pickle_text(*value)), ", which this program does not have");
  }
}

// Fields whose names are Megatron's. Its own meaning of some comes after.
void take_equal_names(const PickleValue& args, FieldList& list, const std::string& where) {
  for (const auto& entry : list.entries()) {
    Field& field = entry->field;
    const PickleValue* value = argument(args, underscored(field.name()));
    for (std::size_t i = 0; value == nullptr && i < field.aliases().size(); ++i) {
      value = argument(args, underscored(field.aliases()[i]));
    }
    std::string text = value == nullptr ? "" : flag_text(*value);
    if (text.empty()) continue;
    std::string problem = field.set_text(text);
    BEV_CHECK(problem.empty(), ErrorKind::kInput, where, ": the argument ",
              underscored(field.name()), ": ", problem);
  }
}

void take_activation(const PickleValue& args, ModelConfig& model) {
  model.gated = is_on(args, "swiglu") || is_on(args, "quick_geglu");
  model.activation = Activation::kGelu;
  if (is_on(args, "swiglu")) model.activation = Activation::kSilu;
  if (is_on(args, "quick_geglu")) model.activation = Activation::kQuickGelu;
  if (is_on(args, "squared_relu")) model.activation = Activation::kSquaredRelu;
  // Megatron's fused bias and GELU computes the tanh approximation.
  bool fused = is_on(args, "bias_gelu_fusion") && model.add_bias_linear;
  if (model.activation == Activation::kGelu && fused) model.activation = Activation::kGeluTanh;
}

void take_positions(const PickleValue& args, ModelConfig& model) {
  if (is_on(args, "use_rotary_position_embeddings")) {
    model.position_embedding_type = PositionKind::kRope;
  }
  if (is_on(args, "use_rope_scaling")) {
    constexpr double kFactor = 8;
    constexpr std::int64_t kOriginal = 8192;
    const PickleValue* factor = argument(args, "rope_scaling_factor");
    model.rope_scaling.kind = RopeScalingKind::kLlama3;
    model.rope_scaling.factor = factor ? factor->as_number().value_or(kFactor) : kFactor;
    model.rope_scaling.original_max_positions = kOriginal;
  }
}

void take_experts(const PickleValue& args, ModelConfig& model) {
  MoeConfig& moe = model.moe;
  if (!moe.any()) {
    moe = MoeConfig();
    model.moe_training = MoeTraining();
    return;
  }
  if (argument(args, "moe_ffn_hidden_size") == nullptr) moe.ffn_hidden_size = 0;
}

bool is_expressed_by(const std::string& family, ModelConfig model) {
  model.family = family;
  try {
    ModelConfig wanted = canonical(model);
    return differing_fields(from_hf(to_hf(wanted, Dtype::kF32)), wanted).empty();
  } catch (const Error&) {
    return false;
  }
}

// A family whose config.json expresses the model, so that it can be exported, the usual ones first;
// the model's own otherwise.
std::string family_of(const ModelConfig& model) {
  for (const char* usual : {"gpt2", "llama", "qwen2", "qwen3", "mixtral", "deepseek_v3"}) {
    if (is_expressed_by(usual, model)) return usual;
  }
  for (const ModelFamily& family : families()) {
    if (is_expressed_by(family.name, model)) return family.name;
  }
  return model.family;
}

}  // namespace

ModelConfig model_of_arguments(const PickleValue& args, std::int64_t vocab_rows,
                               const std::string& where) {
  check_supported(args, where);
  ModelConfig model;
  FieldList list;
  model.fields(list);
  take_equal_names(args, list, where);
  model.vocab_size = vocab_rows > 0 ? vocab_rows : number_of(args, "padded_vocab_size", 0);
  if (!is_on(args, "group_query_attention")) model.num_query_groups = 0;
  take_activation(args, model);
  take_positions(args, model);
  take_experts(args, model);
  std::vector<std::string> problems = model.problems();
  BEV_CHECK(problems.empty(), ErrorKind::kInput, where,
            ": the arguments describe no model here: ", problems[0]);
  model = canonical(model);
  model.family = family_of(model);
  return model;
}

namespace {

// Flags outside of model and optimizer whose names and meaning are Megatron's, by our section.
struct Section {
  std::string_view name, flags;
};
constexpr auto kSections = std::to_array<Section>({
    {"batch", "micro-batch-size global-batch-size rampup-batch-size"},
    {"data",
     "seq-length split data-path train-data-path valid-data-path test-data-path "
     "data-args-path per-split-data-args-path reset-position-ids reset-attention-mask "
     "eod-mask-loss"},
    {"loader", "dataloader-type"},
    {"precision", "bf16 fp16"},
    {"runtime", "seed"},
    {"training", "train-iters train-samples"},
});

void append_fields(const FieldList& list, std::vector<ConfigEntry>& out) {
  for (const auto& entry : list.entries()) {
    out.push_back({entry->section, entry->field.name(), entry->field.text()});
  }
}

}  // namespace

std::vector<ConfigEntry> config_of_arguments(const PickleValue& args, const ModelConfig& model,
                                             std::vector<std::string>& ignored) {
  std::vector<ConfigEntry> out;
  ModelConfig copy = model;
  FieldList of_model;
  copy.fields(of_model);
  append_fields(of_model, out);
  OptimConfig optim;
  FieldList of_optim;
  optim.fields(of_optim);
  for (const auto& entry : of_optim.entries()) {
    Field& field = entry->field;
    const PickleValue* value = argument(args, underscored(field.name()));
    std::string text = value == nullptr ? "" : flag_text(*value);
    if (text.empty()) continue;
    std::string problem = field.set_text(text);
    if (problem.empty()) {
      out.push_back({entry->section, field.name(), field.text()});
    } else {
      ignored.push_back(concat("argument ", underscored(field.name()), ": ", problem));
    }
  }
  for (const Section& section : kSections) {
    for (const std::string& flag : split(section.flags, ' ')) {
      const PickleValue* value = argument(args, underscored(flag));
      std::string text = value == nullptr ? "" : flag_text(*value);
      if (!text.empty()) out.push_back({std::string(section.name), flag, text});
    }
  }
  return out;
}

std::string layout_of_arguments(const PickleValue& args) {
  struct Size {
    std::string_view name, argument;
  };
  constexpr auto kSizes = std::to_array<Size>({
      {"tp", "tensor_model_parallel_size"},
      {"pp", "pipeline_model_parallel_size"},
      {"vpp", "virtual_pipeline_model_parallel_size"},
      {"cp", "context_parallel_size"},
      {"ep", "expert_model_parallel_size"},
      {"etp", "expert_tensor_parallel_size"},
  });
  std::vector<std::string> parts;
  for (const Size& size : kSizes) {
    std::int64_t ranks = number_of(args, size.argument, 1);
    if (ranks > 1) parts.push_back(concat(size.name, " ", ranks));
  }
  return parts.empty() ? "one rank" : join(parts, ", ");
}

namespace {

// A number that may be a tensor of one element.
std::optional<double> number_in(const PickleValue* value, const TorchArchive* archive) {
  if (value == nullptr) return std::nullopt;
  if (!TorchArchive::is_tensor(*value)) return value->as_number();
  if (archive == nullptr) return std::nullopt;
  TorchTensor tensor = archive->tensor(*value, "a number");
  if (tensor.bytes.size() != size_of(tensor.dtype)) return std::nullopt;
  switch (tensor.dtype) {
    case Dtype::kF32: {
      float number = 0;
      std::memcpy(&number, tensor.bytes.data(), sizeof number);
      return number;
    }
    case Dtype::kF64: {
      double number = 0;
      std::memcpy(&number, tensor.bytes.data(), sizeof number);
      return number;
    }
    case Dtype::kI64:
    case Dtype::kI32: {
      std::int64_t number = 0;
      std::memcpy(&number, tensor.bytes.data(), tensor.bytes.size());
      return static_cast<double>(number);
    }
    default:
      return std::nullopt;
  }
}

std::int64_t count_in(const PickleValue* value, const TorchArchive* archive) {
  constexpr double kMost = 1e15;
  double number = number_in(value, archive).value_or(0);
  return number >= 0 && number < kMost ? std::llround(number) : 0;
}

// The dict of the key in the value, in what it holds under "optimizer", or in the first of several
// optimizers (a list, or a dict with the keys 0, 1, ..).
const PickleValue* find_within(const PickleValue* value, std::string_view key, int depth) {
  if (value == nullptr || depth == 0) return nullptr;
  if (const PickleValue* found = value->find(key)) return found;
  if (const PickleValue* inner = value->find("optimizer"))
    return find_within(inner, key, depth - 1);
  std::span<const PickleValue* const> items = value->elements();
  if (!items.empty()) return find_within(items[0], key, depth - 1);
  for (const auto& [name, inner] : value->pairs()) {
    if (name->is(PickleKind::kInt)) return find_within(inner, key, depth - 1);
  }
  return nullptr;
}

constexpr int kOptimizerDepth = 4;

// Updates so far: the step of a parameter group, or the one that all parameters share.
std::int64_t updates_of(const CommonState& common) {
  const PickleValue* groups = find_within(common.optimizer, "param_groups", kOptimizerDepth);
  if (groups != nullptr) {
    for (const PickleValue* group : groups->elements()) {
      if (const PickleValue* step = group->find("step")) return count_in(step, common.tensors);
    }
  }
  const PickleValue* state = find_within(common.optimizer, "state", kOptimizerDepth);
  if (state != nullptr) {
    if (const PickleValue* step = state->find("common_step")) {
      return count_in(step, common.tensors);
    }
    for (const auto& [param, values] : state->pairs()) {
      if (const PickleValue* step = values->find("step")) return count_in(step, common.tensors);
    }
  }
  return -1;
}

void take_scaler(const CommonState& common, LossScaler::State& out) {
  const PickleValue* scaler = find_within(common.optimizer, "grad_scaler", kOptimizerDepth);
  if (scaler == nullptr) return;
  double scale = number_in(scaler->find("scale"), common.tensors).value_or(0);
  if (scale > 0) out.scale = scale;
  out.growth_counter = count_in(scaler->find("growth_tracker"), common.tensors);
  out.hysteresis_counter = count_in(scaler->find("hysteresis_tracker"), common.tensors);
}

// The names of opt_param_scheduler are those of our state, but for the first.
void take_schedules(const CommonState& common, TrainingState& out) {
  FieldList list;
  out.fields(list);
  constexpr auto kNames = std::to_array<std::string_view>(
      {"max_lr", "min_lr", "lr_warmup_steps", "lr_decay_steps", "lr_decay_style", "start_wd",
       "end_wd", "wd_incr_style", "wd_incr_steps"});
  for (std::string_view name : kNames) {
    const PickleValue* value = common.scheduler->find(name);
    if (value != nullptr) list.find(name)->set_text(flag_text(*value));
  }
  out.scheduled_samples = count_in(common.scheduler->find("num_steps"), common.tensors);
}

}  // namespace

TrainingState state_of(const CommonState& common) {
  TrainingState state;
  state.iteration = count_in(common.iteration, common.tensors);
  if (common.args != nullptr) {
    state.consumed_samples = number_of(*common.args, "consumed_train_samples", 0);
    state.seed = number_of(*common.args, "seed", 0);
    state.consumed_tokens = state.consumed_samples * number_of(*common.args, "seq_length", 0);
  }
  state.scheduled_samples = state.consumed_samples;
  if (common.scheduler != nullptr) take_schedules(common, state);
  std::int64_t updates = updates_of(common);
  state.updates = updates >= 0 ? updates : state.iteration;
  state.skipped = std::max<std::int64_t>(state.iteration - state.updates, 0);
  take_scaler(common, state.scaler);
  return state;
}

}  // namespace bev
