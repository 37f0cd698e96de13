#include "serve/served_model.h"

#include <algorithm>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json_check.h"
#include "base/text.h"
#include "chat/jinja/value_text.h"
#include "chat/turn_end.h"
#include "infer/end_tokens.h"

namespace bev {

namespace {

// The sampling settings that a model recommends; those that it does not name are left.
void read_sampling(const std::string& folder, SamplingOptions& sampling) {
  std::string path = join_path(folder, "generation_config.json");
  if (!path_exists(path)) return;
  jinja::Value config = jinja::parse_json(mark_python_numbers(read_file(path)), path);
  auto number = [&](const char* name, auto& into) {
    const jinja::Value* found = config.is_dict() ? config.dict()->find_name(name) : nullptr;
    if (found == nullptr || !found->is_number() || found->is_bool()) return;
    into = static_cast<std::decay_t<decltype(into)>>(found->number());
  };
  number("temperature", sampling.temperature);
  number("top_k", sampling.top_k);
  number("top_p", sampling.top_p);
  number("min_p", sampling.min_p);
  number("repetition_penalty", sampling.repetition_penalty);
}

std::string last_part(const std::string& path) {
  std::vector<std::string> parts = split(path, '/');
  std::erase(parts, "");
  return parts.empty() ? "model" : parts.back();
}

}  // namespace

ServedModel::ServedModel(const ModelConfig& model, const ServedModelOptions& options)
    : config(model),
      names(options.names),
      adapters(options.adapters),
      root(options.root),
      created(unix_microseconds() / 1'000'000),
      trust_request_chat_template(options.trust_request_chat_template) {
  if (names.empty()) names = {last_part(options.root)};
  for (const std::string& adapter : adapters) {
    BEV_CHECK(std::ranges::find(names, adapter) == names.end(), ErrorKind::kConfig,
              "--adapter: ", adapter,
              " is the name of the model; give another, or --served-model-name");
  }
  std::int64_t positions = model.max_position_embeddings;
  if (const std::int64_t most = model.longest_sequence(); most > 0) {
    positions = std::min(positions, most);
  }
  max_model_len = options.max_model_len > 0 ? options.max_model_len : positions;
  BEV_CHECK(max_model_len > 0, ErrorKind::kConfig,
            "--max-model-len: is missing; the model does not say how many positions it has");
  const std::string& files = options.files;
  if (files.empty()) return;
  tokenizer = load_tokenizer(files);
  end_tokens = chat_end_tokens = read_end_tokens(files);
  if (options.generation_config) read_sampling(files, sampling);
  check_sampling(sampling, model.vocab_size);
  std::vector<NamedTemplate> templates = chat_templates(files, options.chat_template);
  if (!tokenizer || templates.empty()) return;
  chat_template.emplace(ChatTemplate::load(files, options.chat_template, false));
  std::optional<std::int32_t> end = turn_end(*chat_template, *tokenizer);
  if (end && std::ranges::find(end_tokens, *end) == end_tokens.end()) {
    chat_end_tokens.push_back(*end);
  }
  reasoning = find_reasoning(options.reasoning);
  if (options.reasoning != "auto") return;
  for (const NamedTemplate& each : templates) {
    if (reasoning == nullptr) reasoning = reasoning_of_template(each.text);
  }
}

bool ServedModel::answers_to(std::string_view wanted) const {
  return wanted.empty() || std::ranges::find(names, wanted) != names.end() ||
         adapter_of(wanted) >= 0;
}

std::int64_t ServedModel::adapter_of(std::string_view wanted) const {
  auto found = std::ranges::find(adapters, wanted);
  return found == adapters.end() ? -1 : found - adapters.begin();
}

}  // namespace bev
