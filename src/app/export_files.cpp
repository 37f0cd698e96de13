#include "app/export_files.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/json_check.h"
#include "base/log.h"
#include "base/text.h"
#include "bridge/weight_files.h"
#include "chat/turn_end.h"
#include "infer/end_tokens.h"
#include "models/families/hf_config.h"
#include "train/label_data.h"
#include "train/text_data.h"

namespace bev {

namespace {

using Files = std::vector<ExportFile>;

constexpr const char* kConfig = "config.json";
constexpr const char* kGenerationConfig = "generation_config.json";
constexpr const char* kTokenizerConfig = "tokenizer_config.json";
constexpr const char* kTemplate = "chat_template.jinja";
constexpr const char* kEos = "eos_token_id";

ExportFile* find_file(Files& files, std::string_view name) {
  auto found = std::ranges::find(files, name, &ExportFile::name);
  return found == files.end() ? nullptr : &*found;
}

// The templates as Hugging Face stores them: the default in chat_template.jinja, the others in a
// folder; and all of them in tokenizer_config.json, for programs that read only that.
void write_templates(Files& files, const std::vector<NamedTemplate>& templates) {
  using Json = nlohmann::ordered_json;
  std::erase_if(files, [](const ExportFile& file) {
    return file.name == kTemplate || file.name == "chat_template.json" ||
           file.name.starts_with(kMoreTemplates);
  });
  Json list = Json::array();
  for (const NamedTemplate& one : templates) {
    bool is_default = one.name == "default";
    files.push_back(
        {is_default ? kTemplate : join_path(kMoreTemplates, one.name + ".jinja"), one.text});
    list.push_back({{"name", one.name}, {"template", one.text}});
  }
  ExportFile* config = find_file(files, kTokenizerConfig);
  if (!config) return;
  check_json(config->content, kTokenizerConfig, 64);
  Json settings = Json::parse(config->content);
  bool single = templates.size() == 1 && templates[0].name == "default";
  settings["chat_template"] = single ? Json(templates[0].text) : list;
  config->content = settings.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

void set_end_tokens(HfConfig& config, const std::vector<std::int64_t>& ends) {
  ends.size() == 1 ? config.set(kEos, ends[0]) : config.set(kEos, ends);
}

// Adds `end` to the end tokens that the files list.
void add_end_token(Files& files, std::int32_t end, std::int64_t eod_id) {
  std::vector<std::int64_t> ends;
  for (const char* name : {kGenerationConfig, kConfig}) {
    ExportFile* file = find_file(files, name);
    if (!file || !ends.empty()) continue;
    std::ranges::copy(end_tokens_in(file->content, name), std::back_inserter(ends));
  }
  if (ends.empty() && eod_id >= 0) ends.push_back(eod_id);
  if (std::ranges::find(ends, end) == ends.end()) ends.push_back(end);
  if (!find_file(files, kGenerationConfig)) files.push_back({kGenerationConfig, "{}"});
  for (const char* name : {kGenerationConfig, kConfig}) {
    ExportFile* file = find_file(files, name);
    HfConfig config = HfConfig::parse(file->content, name);
    set_end_tokens(config, ends);
    std::optional<HfConfig> inner = config.object("text_config");
    if (inner && inner->has(kEos)) {
      set_end_tokens(*inner, ends);
      config.set("text_config", *inner);
    }
    file->content = config.dump();
  }
}

// Whether the tokenizer is the folder or a file in it.
bool lies_in(const std::string& tokenizer, const std::string& folder) {
  if (!path_exists(tokenizer) || !path_exists(folder)) return false;
  std::error_code error;
  return std::filesystem::equivalent(is_directory(tokenizer) ? tokenizer : parent_path(tokenizer),
                                     folder, error);
}

// The files of the model folder and of the tokenizer. Another tokenizer replaces all files of the
// folder's own.
Files copied_files(const std::string& model, const DataConfig& data) {
  Files files = model.empty() ? Files() : companion_files(model);
  bool own = data.tokenizer != model || data.tiktoken.given();
  if (data.tokenizer.empty() || !own) return files;
  Files theirs = tokenizer_export_files(data.tokenizer, data.tiktoken);
  bool replaces = !theirs.empty() && (data.tiktoken.given() || !lies_in(data.tokenizer, model));
  std::erase_if(files, [&](const ExportFile& file) {
    return find_file(theirs, file.name) || (replaces && file.name != kGenerationConfig);
  });
  std::ranges::move(theirs, std::back_inserter(files));
  return files;
}

}  // namespace

Files export_files(const RunConfig& run, Dtype dtype) {
  const std::string &model = run.train.hf_model, &tokenizer = run.data.tokenizer;
  Files files = copied_files(model, run.data);
  files.push_back({kConfig, export_config(run.model, dtype, model)});
  if (run.data.preferences.text_task()) {
    set_label_names(files.back().content, run_label_names(run.data));
  }
  bool speaks = !run.data.sft_data.empty() || !run.data.chat_template.empty();
  if (speaks && !tokenizer.empty()) {
    set_chat_template(files, tokenizer, run.data.chat_template, run.data.eod_id);
  }
  // The config.json of a new model has no EOS token.
  bool says_end = !model.empty() || find_file(files, kGenerationConfig) != nullptr;
  if (!says_end && run.data.eod_id >= 0) {
    files.push_back({kGenerationConfig, concat("{\"eos_token_id\": ", run.data.eod_id, "}\n")});
  }
  return files;
}

void set_chat_template(Files& files, const std::string& tokenizer, const std::string& chosen,
                       std::int64_t eod_id) {
  std::vector<NamedTemplate> templates = chat_templates(tokenizer, chosen);
  if (templates.empty()) return;
  write_templates(files, templates);
  std::unique_ptr<Tokenizer> codec = open_tokenizer(tokenizer);
  std::optional<std::int32_t> end = turn_end(ChatTemplate::load(tokenizer, chosen, false), *codec);
  if (end) add_end_token(files, *end, eod_id);
}

void warn_of_endless_turns(const std::string& tokenizer, const std::string& chosen) {
  if (turn_end(ChatTemplate::load(tokenizer, chosen, false), *open_tokenizer(tokenizer))) return;
  log_warning(
      "--chat-template: what it writes after an answer is no special token of the tokenizer, so "
      "generation cannot stop there; use a tokenizer that has the token (tokenizer train "
      "--special-tokens)");
}

}  // namespace bev
