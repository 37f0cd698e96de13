#include "app/recorded_run.h"

#include <algorithm>
#include <array>
#include <filesystem>

#include "base/error.h"
#include "base/fields.h"
#include "base/file.h"
#include "base/json_check.h"
#include "base/log.h"
#include "base/text.h"
#include "checkpoint/config_copy.h"
#include "checkpoint/step_folders.h"

namespace bev {

namespace fs = std::filesystem;

namespace {

// Flags of one start of a run, which do not go along, and those that are found in another way.
constexpr std::string_view kOneStart =
    "load save tokenizer ckpt-step finetune existing-run use-checkpoint-args "
    "exit-on-missing-checkpoint "
    "load-fallback moe-use-upcycling moe-upcycling-granularity preset dry-run json skip-train "
    "adapter inject-fault consumed-train-samples profile-trace profile-step-start profile-step-end";
constexpr std::string_view kInputPaths =
    "text tokenizer token-batches batches data-path train-data-path valid-data-path "
    "test-data-path data-args-path per-split-data-args-path sft-data sft-valid-data chat-template "
    "hf-model data valid-data ref-model teacher-model";
constexpr std::string_view kOutputPaths =
    "data-cache-path export-hf export-adapter save-hf metrics-out tensorboard-dir loss-svg "
    "non-persistent-global-ckpt-dir non-persistent-local-ckpt-dir rollouts-out report-html";
// A flag given now replaces those that the run had of the same group.
constexpr auto kGroups = std::to_array<std::string_view>({
    "train-iters train-samples epochs",
    "text mock-data token-batches batches sft-data data-path train-data-path data-args-path "
    "per-split-data-args-path valid-data-path test-data-path sft-valid-data",
    "bf16 fp16 fp64",
    "global-batch-size step-batch-size-schedule",
    "lr-decay-iters lr-decay-samples",
    "lr-warmup-iters lr-warmup-samples lr-warmup-fraction",
    "lr-wsd-decay-iters lr-wsd-decay-samples",
    "override-opt-param-scheduler use-checkpoint-opt-param-scheduler",
    "ranks tensor-model-parallel-size pipeline-model-parallel-size context-parallel-size "
    "data-parallel-size",
});
// A replay given now leaves these of the run out; its file says what they would.
constexpr std::string_view kReplays = "batches token-batches";
constexpr std::string_view kLeftByReplays =
    "global-batch-size rampup-batch-size step-batch-size-schedule decrease-batch-size-if-needed "
    "eval-interval eval-iters full-validation dataloader-type";
// Flags that add to their group: given alone they replace only what they name.
constexpr std::string_view kAdding = "valid-data-path test-data-path sft-valid-data";

bool lists(std::string_view names, std::string_view name) {
  const std::vector<std::string> all = split(names, ' ');
  return std::ranges::find(all, name) != all.end();
}

bool given_now(const Options& options, std::string_view field) {
  const Setting* setting = options.find(field);
  return setting != nullptr && !setting->recorded;
}

// Whether another flag of the group was given now. Sizes of a layout replace only --ranks.
bool replaced(std::string_view field, const Options& options) {
  const std::vector<std::string> replays = split(kReplays, ' ');
  bool replay = std::ranges::any_of(
      replays, [&](const std::string& flag) { return given_now(options, flag); });
  if (replay && lists(kLeftByReplays, field)) return true;
  for (std::string_view group : kGroups) {
    if (!lists(group, field)) continue;
    if (group.starts_with("ranks ") && field != "ranks") continue;
    for (const std::string& other : split(group, ' ')) {
      if (!lists(kAdding, other) && given_now(options, other)) return true;
    }
  }
  return false;
}

bool same_path(const std::string& one, const std::string& other) {
  std::error_code ignored;
  return one == other || fs::equivalent(one, other, ignored);
}

std::string current_folder() { return fs::current_path().native(); }

// Without a slash at the end.
std::string absolute_path(const std::string& folder, const std::string& path) {
  fs::path whole = (fs::path(folder) / path).lexically_normal();
  return (whole.has_filename() ? whole : whole.parent_path()).native();
}

// Whether the word names a file, a folder, token files or a tokenizer with its pattern.
bool is_there(const std::string& word) {
  return path_exists(word) || path_exists(word + ".idx") ||
         path_exists(word.substr(0, word.rfind(':')));
}

// Finds what paths of a run meant. Relative ones were relative to the folder where the run was
// started. If the run's folder was moved, alone or with folders around it, what lay in the moved
// folder is looked for in its new place: of old/proj/runs/a and new/runs/a, old/proj and new.
class RecordedPaths {
 public:
  RecordedPaths(const RunRecord& record, const std::string& run_folder)
      : started_in_(record.folder) {
    auto save = std::ranges::find(record.settings, "save", &Setting::field);
    if (save == record.settings.end() || started_in_.empty()) return;
    saved_to_ = absolute_path(started_in_, save->values.at(0));
    run_folder_ = absolute_path(current_folder(), run_folder);
    fs::path old_root = saved_to_, new_root = run_folder_;
    while (old_root.filename() == new_root.filename() && old_root.has_relative_path() &&
           new_root.has_relative_path()) {
      old_root = old_root.parent_path();
      new_root = new_root.parent_path();
    }
    old_root_ = old_root, new_root_ = new_root;
  }

  std::string find(const std::string& word, bool output) const {
    if (word.empty() || started_in_.empty()) return word;
    auto found = [&](const std::string& path) {
      return output ? is_directory(parent_path(path)) : is_there(path);
    };
    std::string path = absolute_path(started_in_, word);
    std::string inside = moved_path(path, saved_to_, run_folder_);
    if (!inside.empty() && (output || found(inside))) return inside;
    std::string around = moved_path(path, old_root_, new_root_);
    if (!found(path) && !around.empty() && found(around)) return around;
    bool same_place = started_in_ == current_folder() || word.starts_with('/');
    return same_place || !found(path) ? word : path;
  }

 private:
  // The path below `to` that is `path` below `from`; "" if it is not below or nothing was moved.
  static std::string moved_path(const std::string& path, const std::string& from,
                                const std::string& to) {
    if (from == to) return "";
    std::string prefix = from.ends_with('/') ? from : from + "/";
    return path.starts_with(prefix) ? join_path(to, path.substr(prefix.size())) : "";
  }

  std::string started_in_, run_folder_, saved_to_, old_root_, new_root_;
};

// The folder of the run that a step's folder belongs to.
std::string run_folder_of(const std::string& step_folder) {
  std::string folder = parent_path(step_folder);
  bool passing = fs::path(folder).filename() == "non_persistent";
  return passing ? parent_path(folder) : folder;
}

// A checkpoint without run.json, of an older program, copied alone or of Megatron, has the resolved
// values.
RunRecord record_of_manifest(const CheckpointReader& reader) {
  RunRecord record{reader.foreign() ? reader.folder() : join_path(reader.folder(), kManifestName)};
  RunConfig plain;
  FieldList list;
  plain.fields(list);
  const std::vector<ConfigEntry>& config = reader.manifest().config;
  auto value_of = [&](std::string_view name) {
    auto found = std::ranges::find(config, name, &ConfigEntry::name);
    return found == config.end() ? std::string() : found->value;
  };
  for (const ConfigEntry& entry : config) {
    const Field* field = list.find(entry.name);
    BEV_CHECK(field != nullptr, ErrorKind::kInput, record.source, ": has the flag ",
              quote(entry.name), ", which this program does not know; a newer one wrote it");
    if (entry.value.empty() || entry.value == field->text()) continue;
    // Values that follow others were not given: a decay as long as the run, the length of epochs.
    bool epochs = !value_of("epochs").empty() && value_of("epochs") != "0";
    bool follows = (entry.name == "lr-decay-iters" && entry.value == value_of("train-iters")) ||
                   (entry.name == "lr-decay-samples" && entry.value == value_of("train-samples")) ||
                   (entry.name == "train-iters" && epochs);
    if (follows) continue;
    record.settings.push_back({field->name(), {entry.value}, record.source, true});
  }
  return record;
}

// Throws Error(kInput) if there is no configuration because Megatron's could not be read as ours.
void check_described(const CheckpointReader& reader) {
  BEV_CHECK(reader.foreign() == nullptr || reader.foreign()->unreadable.empty(), ErrorKind::kInput,
            reader.foreign()->unreadable);
}

RunRecord record_of(const CheckpointReader& reader) {
  check_described(reader);
  if (reader.foreign() != nullptr) return record_of_manifest(reader);
  BEV_CHECK(!reader.manifest().config.empty(), ErrorKind::kInput, reader.folder(),
            ": the checkpoint does not record the configuration of its run; give the flags of "
            "model, data and training as for a new run");
  std::string path = join_path(run_folder_of(reader.folder()), kRunRecordName);
  return path_exists(path) ? read_run_record(path) : record_of_manifest(reader);
}

std::vector<ConfigEntry> model_entries(const CheckpointReader& reader) {
  ModelConfig model;
  FieldList list;
  model.fields(list);
  std::vector<ConfigEntry> entries = reader.manifest().config;
  std::erase_if(entries, [&](const ConfigEntry& entry) { return !list.find(entry.name); });
  return entries;
}

std::string need_step(const CheckpointConfig& config) {
  std::optional<std::string> step = step_to_read(config);
  BEV_CHECK(step, ErrorKind::kConfig, "--load ", config.load,
            ": there is no checkpoint to go on from, and no flag describes a model; give another "
            "folder, or a model by --preset, --hf-model or its sizes");
  return *step;
}

// The values of a setting, with paths that are valid now.
std::vector<std::string> current_values(const Setting& setting, const Field& field,
                                        const RecordedPaths& paths) {
  bool output = lists(kOutputPaths, setting.field);
  if (!output && !lists(kInputPaths, setting.field)) return setting.values;
  std::vector<std::string> words = setting.values;
  if (field.is_list() && words.size() == 1) words = split(words[0], ',');
  for (std::string& word : words) word = paths.find(std::string(trim(word)), output);
  return words;
}

}  // namespace

std::optional<std::string> step_to_read(const CheckpointConfig& config) {
  if (holds_step(config.load)) return config.load;
  if (config.ckpt_step >= 0) return find_step_folder(config.load, config.ckpt_step);
  std::string passing = config.non_persistent_global_folder(config.load);
  for (const std::string& folder : {config.load, passing}) {
    if (std::optional<std::int64_t> step = latest_step(folder)) return step_folder(folder, *step);
  }
  return std::nullopt;
}

bool goes_on_alone(const CheckpointConfig& config, const Options& options) {
  if (config.load.empty()) return false;
  constexpr std::array<std::string_view, 5> kModel = {"preset", "hf-model", "model-family",
                                                      "num-layers", "hidden-size"};
  bool described =
      std::ranges::any_of(kModel, [&](std::string_view flag) { return given_now(options, flag); });
  return !described || (config.use_checkpoint_args && step_to_read(config).has_value());
}

void accept_step_folder(const CheckpointConfig& config, const FieldList& fields, Options& options) {
  if (config.load.empty() || !holds_step(config.load)) return;
  fs::path folder = fs::absolute(config.load).lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();
  std::optional<std::int64_t> step = parse_step(folder.filename().native());
  BEV_CHECK(step && (config.ckpt_step < 0 || config.ckpt_step == *step), ErrorKind::kConfig,
            "--load ", config.load, ": is the folder of one step",
            step ? concat(", ", *step, ", not of --ckpt-step ", config.ckpt_step)
                 : concat(" under another name than ", kStepPrefix, "NNNNNNN"),
            "; give the folder of the run, and --ckpt-step for a step other than the last");
  fs::path given(config.load);
  if (!given.has_filename()) given = given.parent_path();
  std::string run =
      given.has_parent_path() ? given.parent_path().native() : folder.parent_path().native();
  options.set(fields, {"load", {run}, "--load"});
  options.set(fields, {"ckpt-step", {std::to_string(*step)}, "--load"});
}

std::string take_recorded_settings(const CheckpointConfig& config, const FieldList& fields,
                                   Options& options) {
  CheckpointReader reader(need_step(config));
  RunRecord record = record_of(reader);
  std::string run_folder = run_folder_of(reader.folder());
  RecordedPaths paths(record, run_folder);
  ModelConfig model;
  FieldList model_fields;
  model.fields(model_fields);
  bool branches =
      given_now(options, "save") && !same_path(fields.find("save")->text(), config.load);
  for (Setting& setting : record.settings) {
    const Field* field = fields.find(setting.field);
    BEV_CHECK(field != nullptr, ErrorKind::kInput, record.source, ": has the flag ",
              quote(setting.field), ", which this program does not know; a newer one wrote it");
    bool stays = lists(kOneStart, setting.field) || model_fields.find(setting.field) != nullptr;
    bool elsewhere =
        branches && setting.field != "data-cache-path" && lists(kOutputPaths, setting.field);
    if (stays || elsewhere || config.finetune || given_now(options, setting.field) ||
        replaced(setting.field, options))
      continue;
    setting.values = current_values(setting, *field, paths);
    const std::string& first = setting.values[0];
    if (setting.field == "hf-model" && !path_exists(first)) {
      log_warning(concat("the run's --hf-model ", first, " is not here; its model is that of ",
                         reader.folder()));
      continue;
    }
    options.set(fields, std::move(setting));
  }
  std::string tokenizer = recorded_tokenizer(reader);
  if (!tokenizer.empty() && !given_now(options, "tokenizer")) {
    options.set(fields, {"tokenizer", {tokenizer}, record.source, true});
  }
  // A run does not save into a folder of Megatron's.
  if (!given_now(options, "save") && !config.finetune && reader.foreign() == nullptr) {
    options.set(fields, {"save", {config.load}, record.source, true});
  }
  return record.source;
}

void take_recorded_model(const CheckpointConfig& config, const FieldList& fields,
                         const Options& options) {
  CheckpointReader reader(need_step(config));
  apply_config(model_entries(reader), fields, reader.folder());
  options.apply(fields);
}

void take_recorded_adapters(const CheckpointConfig& config, const FieldList& fields,
                            const Options& options) {
  CheckpointReader reader(need_step(config));
  LoraConfig lora;
  FieldList list;
  lora.fields(list);
  std::vector<ConfigEntry> entries = reader.manifest().config;
  std::erase_if(entries, [&](const ConfigEntry& entry) { return !list.find(entry.name); });
  apply_config(entries, fields, reader.folder());
  options.apply(fields);
}

ModelConfig recorded_model(const CheckpointReader& reader) {
  check_described(reader);
  std::vector<ConfigEntry> entries = model_entries(reader);
  BEV_CHECK(!entries.empty(), ErrorKind::kInput, reader.folder(),
            ": the checkpoint does not record the configuration of its model; name the model by "
            "`bevatron convert --load DIR --hf-model MODEL --export-hf OUT` and use OUT");
  ModelConfig model;
  FieldList list;
  model.fields(list);
  apply_config(entries, list, reader.folder());
  return model;
}

std::string recorded_tokenizer(const CheckpointReader& reader) {
  const std::vector<ConfigEntry>& config = reader.manifest().config;
  auto entry = std::ranges::find(config, "tokenizer", &ConfigEntry::name);
  if (entry == config.end() || entry->value.empty()) return "";
  if (entry->value == "byte" || entry->value.starts_with("null:")) return entry->value;
  RecordedPaths paths(record_of(reader), run_folder_of(reader.folder()));
  std::string path = paths.find(entry->value, false);
  std::string copy = recorded_files(reader.folder());
  return is_there(path) || copy.empty() ? path : copy;
}

std::string recorded_files(const std::string& step_folder) {
  std::string folder = join_path(run_folder_of(step_folder), kModelFilesName);
  return is_directory(folder) ? folder : "";
}

}  // namespace bev
