#include "app/choose_model.h"

#include <algorithm>
#include <optional>

#include "app/idle_flags.h"
#include "app/options.h"
#include "app/recorded_run.h"
#include "base/error.h"
#include "base/fields.h"
#include "bridge/adapter_config.h"
#include "bridge/hf_model.h"
#include "bridge/nf4_load.h"
#include "infer/end_tokens.h"
#include "models/families/family.h"
#include "models/families/follow_sizes.h"
#include "train/label_data.h"

namespace bev {

namespace {

constexpr const char* kFamily = "model-family";

// The model that flags change; nullopt if they describe all of it.
std::optional<ModelConfig> base_model(const RunConfig& run, const Options& options) {
  const std::string &preset_name = run.train.preset, &folder = run.train.hf_model;
  std::optional<ModelConfig> family;
  if (options.given(kFamily)) family = family_defaults(run.model.family);
  if (!preset_name.empty()) return preset(preset_name);
  return folder.empty() ? family : read_hf_config(folder);
}

// The names of the labels in a config.json; empty if they say nothing.
std::vector<std::string> folder_labels(const std::string& folder) {
  std::vector<std::string> names = read_label_names(folder);
  const bool plain = std::ranges::all_of(
      names, [](const std::string& name) { return name.starts_with("LABEL_"); });
  return plain ? std::vector<std::string>() : names;
}

// A task makes an encoder one with a head for it.
void choose_label_head(const DataConfig& data, TextTask task, ModelConfig& model) {
  EncoderConfig& encoder = model.encoder;
  if (!encoder.encoder) return;
  const bool modern = model.family == "modernbert";
  encoder.labels = task == TextTask::kTags    ? LabelKind::kTokens
                   : task == TextTask::kSpans ? LabelKind::kSpans
                                              : LabelKind::kSequence;
  encoder.language_head = encoder.next_sentence = false;
  encoder.pooler = encoder.labels == LabelKind::kSequence && !modern;
  encoder.transform = modern;
  model.add_head_bias = model.untie_embeddings_and_output_weights = false;
  model.num_labels = task == TextTask::kNumber  ? 1
                     : task == TextTask::kSpans ? 2
                                                : std::ssize(run_label_names(data));
}

// The objective of rewards makes a reward model of a language model.
void choose_head(DataConfig& data, const std::string& folder, ModelConfig& model) {
  const std::string& objective = data.preferences.objective;
  if (const std::optional<TextTask> task = data.preferences.text_task()) {
    const bool trained = model.encoder.labels != LabelKind::kNone && !folder.empty();
    if (trained && data.labels.names.empty()) data.labels.names = folder_labels(folder);
    return choose_label_head(data, *task, model);
  }
  if (objective == "reward" && model.num_labels == 0) model.num_labels = 1;
  if (!folder.empty()) choose_pad_token(folder, model);
}

// Reads the model of --preset, --hf-model or --family, before flags override it.
void read_model(RunConfig& run, const FieldList& fields, Options& options) {
  const std::string &preset_name = run.train.preset, &folder = run.train.hf_model;
  if (!preset_name.empty() && !folder.empty()) {
    // The other rules are checked on the preset.
    options.add_problems(std::vector{concat("--preset: ", preset_name, " and --hf-model ", folder,
                                            " both give the model; keep one")});
  }
  std::optional<ModelConfig> base;
  try {
    base = base_model(run, options);
  } catch (const Error& error) {
    if (options.problems().empty()) throw;
    options.add_problems(std::vector<std::string>{error.what()});
    options.throw_problems();
  }
  if (!base) return;
  run.model = *base;
  bool fixed = preset_name.empty() && !folder.empty();
  if (fixed) {
    bool upcycled = options.given("moe-use-upcycling") || run.checkpoint.loads_experts;
    options.add_problems(model_conflicts(options, fields, run.model, upcycled));
  }
  options.apply(fields);
  choose_head(run.data, folder, run.model);
  if (options.given("bert-binary-head")) {
    // A head that the model has not is new.
    run.model.encoder.next_sentence = run.data.masked.bert_binary_head;
    run.model.encoder.pooler = run.model.encoder.pooler || run.data.masked.bert_binary_head;
  }
  if (fixed) return;
  follow_sizes(
      *base, [&](std::string_view flag) { return options.given(flag); }, run.model);
}

void set_missing(const FieldList& fields, Options& options, const std::string& origin,
                 std::initializer_list<std::pair<const char*, const char*>> settings) {
  for (const auto& [flag, value] : settings) {
    if (!options.given(flag)) options.set(fields, {flag, {value}, origin});
  }
}

// --position-embedding-type yarn chooses the frequencies too. Megatron's latent attention has those
// of yarn unless --rope-type says else: flags of yarn alone choose it, with Megatron's defaults.
void choose_yarn(const RunConfig& run, const FieldList& fields, Options& options) {
  constexpr std::string_view kYarn[] = {
      "rope-scaling-factor", "mscale",         "mscale-all-dim",
      "yarn-beta-fast",      "yarn-beta-slow", "rope-original-max-position-embeddings"};
  constexpr std::pair<const char*, const char*> kType = {"rope-scaling-type", "yarn"};
  const Setting* positions = options.find("position-embedding-type");
  if (positions != nullptr && positions->values == std::vector<std::string>{"yarn"}) {
    set_missing(fields, options, positions->origin, {kType});
  }
  bool latent = run.model.multi_latent_attention && options.given("multi-latent-attention");
  if (!latent || options.given("rope-scaling-type")) return;
  auto given = std::ranges::find_if(kYarn, [&](auto flag) { return options.given(flag); });
  if (given == std::end(kYarn)) return;
  const std::string origin = options.find(*given)->origin;
  set_missing(
      fields, options, origin,
      {kType, {"rope-scaling-factor", "40"}, {"rope-original-max-position-embeddings", "4096"}});
}

// Takes the settings of --adapter, which no flag may change.
void read_adapter(RunConfig& run, const FieldList& fields, Options& options) {
  if (run.train.adapter.empty()) return;
  std::vector<std::string> problems;
  for (const Setting& setting : options.settings()) {
    bool changes = fields.find_entry(setting.field)->section == LoraConfig::kSection;
    if (!changes || setting.recorded) continue;
    problems.push_back(concat(setting.origin, ": --", setting.field, " is a setting of --adapter ",
                              run.train.adapter, "; leave it out"));
  }
  options.add_problems(problems);
  run.model.lora = read_adapter_config(run.train.adapter);
}

// The format of a base in NF4: that of the folder's own tensors unless flags say more.
void choose_base_format(RunConfig& run, const Options& options) {
  BaseQuantization& base = run.base;
  const std::string& folder = run.train.hf_model;
  Dtype dtype = run.precision.model_dtype();
  base.dtype = dtype == Dtype::kF64 ? Dtype::kF32 : dtype;
  if (base.quantize_base == BaseFormat::kNone || folder.empty()) return;
  std::optional<Nf4Format> stored;
  if (stores_nf4(folder)) stored = folder_nf4_format(run.model, folder);
  if (!stored && !base.used()) return;
  base.quantize_base = BaseFormat::kNf4;
  base.dtype = stored ? stored->dtype : folder_linear_dtype(run.model, folder);
  bool asked = options.given("double-quant") || options.given("quantize-block-size");
  if (!stored || asked) return;
  base.double_quant = stored->double_quant;
  base.quantize_block_size = stored->block;
}

}  // namespace

void choose_pad_token(const std::string& folder, ModelConfig& model) {
  if (model.num_labels == 0 || model.pad_token >= 0) return;
  model.pad_token = read_token_id(folder, "pad_token_id");
  std::vector<std::int32_t> ends = read_end_tokens(folder);
  if (model.pad_token < 0 && !ends.empty()) model.pad_token = ends.front();
}

void choose_model(RunConfig& run, const FieldList& fields, Options& options) {
  bool named = !run.train.preset.empty() || !run.train.hf_model.empty();
  if (!named && goes_on_alone(run.checkpoint, options)) {
    take_recorded_model(run.checkpoint, fields, options);
  } else {
    read_model(run, fields, options);
    // The folder of a run that goes on has its model without adapters.
    bool recorded = !options.given("hf-model") || options.find("hf-model")->recorded;
    if (named && recorded && goes_on_alone(run.checkpoint, options)) {
      take_recorded_adapters(run.checkpoint, fields, options);
    }
  }
  bool described = !named && !options.given(kFamily);
  if (described) choose_yarn(run, fields, options);
  read_adapter(run, fields, options);
  if (options.problems().empty()) choose_base_format(run, options);
  options.add_problems(idle_flags(options, fields, run));
}

std::vector<std::string> fit_new_model(RunConfig& run, const Options& options) {
  if (!run.train.hf_model.empty()) return {};
  std::vector<std::string> notes;
  auto fit = [&](const char* what, std::int64_t& size, std::int64_t wanted, std::string_view why,
                 const char* flag) {
    if (!run.train.preset.empty() && size > 0) {
      notes.push_back(concat("--preset ", run.train.preset, " has ", size, " ", what, ", ", why,
                             " ", wanted, ": the new model has ", wanted, " (", flag,
                             " gives another number)"));
    }
    size = wanted;
  };
  std::int64_t &rows = run.model.vocab_size, &positions = run.model.max_position_embeddings;
  std::int64_t tokens = run.data.tokenizer_vocab_size, length = run.data.seq_length;
  std::int64_t loaded = run.checkpoint.loaded_vocab_size;
  if (loaded > 0 && !options.given("vocab-size")) {
    rows = loaded;
  } else if (tokens > 0 && tokens != rows && !run.data.mock_data && !options.given("vocab-size")) {
    fit("vocabulary rows", rows, tokens, concat("the tokenizer ", run.data.tokenizer, " has"),
        "--vocab-size");
    if (run.model.padding_row >= rows) run.model.padding_row = -1;
  } else if (tokens == 0 && run.train.preset.empty() && run.data.has_token_files() &&
             !options.given("vocab-size")) {
    rows = 0;  // token files have a vocabulary of their own, which only the user knows
  }
  if (positions > 0 && length > positions && !options.given("max-position-embeddings")) {
    fit("positions", positions, length, "--seq-length is", "--max-position-embeddings");
  }
  return notes;
}

}  // namespace bev
