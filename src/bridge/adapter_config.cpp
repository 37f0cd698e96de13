#include "bridge/adapter_config.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/json_check.h"
#include "models/lora.h"

namespace bev {

namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

// Reads values and names file and field in what it throws.
class Reader {
 public:
  explicit Reader(std::string path) : path_(std::move(path)) {
    json_ = Json::parse(read_json_object(path_, 16));
  }

  [[noreturn]] void refuse(const char* key, const std::string& why) const {
    BEV_FAIL(ErrorKind::kInput, path_, ": ", key, " is ", quote(json_[key].dump()), "; ", why);
  }
  bool has(const char* key) const { return json_.contains(key) && !json_[key].is_null(); }
  // As in Python: neither missing nor null, false, 0 or empty.
  bool truthy(const char* key) const {
    if (!has(key)) return false;
    const Json& value = json_[key];
    if (value.is_boolean()) return value.get<bool>();
    if (value.is_number()) return value.get<double>() != 0;
    if (value.is_string()) return !value.get_ref<const std::string&>().empty();
    return !value.empty();
  }
  bool is_text(const char* key) const { return has(key) && json_[key].is_string(); }
  std::string text(const char* key, const std::string& missing) const {
    if (!has(key)) return missing;
    if (!json_[key].is_string()) refuse(key, "it must be text");
    return json_[key].get<std::string>();
  }
  bool boolean(const char* key, bool missing) const {
    if (!has(key)) return missing;
    if (!json_[key].is_boolean()) refuse(key, "it must be true or false");
    return json_[key].get<bool>();
  }
  double positive(const char* key, double missing) const {
    if (!has(key)) return missing;
    if (!json_[key].is_number() || !(json_[key].get<double>() > 0)) {
      refuse(key, "it must be a number above 0");
    }
    return json_[key].get<double>();
  }
  double share(const char* key) const {
    if (!has(key)) return 0;
    if (!json_[key].is_number() || json_[key].get<double>() < 0 || json_[key].get<double>() >= 1) {
      refuse(key, "it must be a number from 0 to below 1");
    }
    return json_[key].get<double>();
  }
  std::int64_t rank(const char* key, std::int64_t missing) const {
    double number = positive(key, static_cast<double>(missing));
    constexpr double kMost = 1 << 16;
    if (number != std::floor(number) || number > kMost) refuse(key, "it must be a whole number");
    return static_cast<std::int64_t>(number);
  }
  // A text or a list of texts.
  std::vector<std::string> texts(const char* key) const {
    std::vector<std::string> out;
    if (!has(key)) return out;
    if (json_[key].is_string()) return {json_[key].get<std::string>()};
    if (!json_[key].is_array()) refuse(key, "it must be a list");
    for (const Json& item : json_[key]) {
      if (!item.is_string()) refuse(key, "it must be a list of texts");
      out.push_back(item.get<std::string>());
    }
    return out;
  }
  std::vector<std::int64_t> numbers(const char* key) const {
    std::vector<std::int64_t> out;
    if (!has(key)) return out;
    auto add = [&](const Json& item) {
      if (!item.is_number_integer() || item.get<std::int64_t>() < 0) {
        refuse(key, "it must be numbers of layers");
      }
      out.push_back(item.get<std::int64_t>());
    };
    if (json_[key].is_array()) {
      for (const Json& item : json_[key]) add(item);
    } else {
      add(json_[key]);
    }
    return out;
  }
  // An object as PATTERN=NUMBER.
  std::vector<std::string> patterns(const char* key) const {
    std::vector<std::string> out;
    if (!has(key)) return out;
    if (!json_[key].is_object()) refuse(key, "it must be an object");
    for (const auto& [pattern, number] : json_[key].items()) {
      if (!number.is_number()) refuse(key, "its values must be numbers");
      out.push_back(concat(pattern, "=", number.dump()));
    }
    return out;
  }

 private:
  std::string path_;
  Json json_;
};

constexpr const char* kPissa = "pissa";

struct Refused {
  const char *key, *why;
};
// Fields with which an adapter computes something else, or a part of it is not in the factors.
constexpr Refused kRefused[] = {
    {"lora_bias", "biases of B are not supported"},
    {"trainable_token_indices", "single rows of embeddings are not supported"},
    {"layer_replication", "repeated layers are not supported"},
    {"alora_invocation_tokens", "adapters from a token on (aLoRA) are not supported"},
    {"use_qalora", "QA-LoRA is not supported"},
    {"use_bdlora", "block-diagonal factors are not supported"},
    {"arrow_config", "routing between adapters (Arrow) is not supported"},
    {"monteclora_config", "MonteCLoRA is not supported"},
    {"kasa_config", "KaSA is not supported"},
    {"velora_config", "VeLoRA is not supported"},
};

void refuse_others(const Reader& file) {
  if (file.text("peft_type", "LORA") != "LORA") {
    file.refuse("peft_type", "only LORA is supported");
  }
  for (const Refused& refused : kRefused) {
    if (file.truthy(refused.key)) file.refuse(refused.key, refused.why);
  }
  if (file.text("bias", "none") != "none") {
    file.refuse("bias", "biases that train with an adapter are not supported");
  }
  // These change the model's weights, so that the factors alone do not make the adapted model.
  const std::set<std::string> kept = {"gaussian", "eva", "orthogonal", "mica"};
  const std::string init =
      file.is_text("init_lora_weights") ? file.text("init_lora_weights", "") : "gaussian";
  if (init != kPissa && !kept.contains(init)) {
    file.refuse("init_lora_weights",
                "such an adapter belongs to changed weights; save it with peft's "
                "path_initial_model_for_weight_conversion, which makes an ordinary one of it");
  }
}

// In any case of letters.
bool is_all_linear(const std::string& text) {
  return std::ranges::equal(text, std::string_view("all-linear"), [](char a, char b) {
    return (a >= 'A' && a <= 'Z' ? a + 32 : a) == b;
  });
}

}  // namespace

LoraConfig read_adapter_config(const std::string& folder) {
  BEV_CHECK(is_directory(folder), ErrorKind::kInput, folder, ": no such folder");
  Reader file(join_path(folder, kAdapterConfigName));
  refuse_others(file);
  LoraConfig lora;
  lora.rank = file.rank("r", 8);
  lora.alpha = file.positive("lora_alpha", 8);
  lora.dropout = file.share("lora_dropout");
  lora.rslora = file.boolean("use_rslora", false);
  lora.dora = file.boolean("use_dora", false);
  if (file.is_text("init_lora_weights")) {
    const std::string init = file.text("init_lora_weights", "");
    if (init == "gaussian") lora.init = LoraInit::kGaussian;
    if (init == kPissa) lora.init = LoraInit::kPissa;
  }
  lora.modules_to_save = file.texts("modules_to_save");
  lora.weight_tying = file.boolean("ensure_weight_tying", false);
  auto list_or_regex = [&](const char* key, std::vector<std::string>& list, std::string& regex) {
    bool all = file.is_text(key) && is_all_linear(file.text(key, ""));
    if (file.is_text(key) && !all) {
      regex = file.text(key, "");
    } else {
      list = all ? std::vector<std::string>{"all-linear"} : file.texts(key);
      std::ranges::sort(list);
    }
  };
  list_or_regex("target_modules", lora.target_modules, lora.target_regex);
  list_or_regex("exclude_modules", lora.exclude_modules, lora.exclude_regex);
  lora.target_parameters = file.texts("target_parameters");
  lora.layers = file.numbers("layers_to_transform");
  if (!lora.layers.empty()) lora.layers_pattern = file.texts("layers_pattern");
  lora.rank_pattern = file.patterns("rank_pattern");
  lora.alpha_pattern = file.patterns("alpha_pattern");
  return lora;
}

namespace {

// A whole number where it is one, as peft writes ranks and alphas.
OrderedJson number_json(double number) {
  if (number == std::floor(number) && std::abs(number) < 1e15) {
    return static_cast<std::int64_t>(number);
  }
  return number;
}

OrderedJson pattern_json(const std::vector<std::string>& texts, double factor, const char* flag) {
  OrderedJson out = OrderedJson::object();
  for (const std::string& text : texts) {
    NumberPattern parsed = parse_number_pattern(text, flag);
    out[parsed.pattern] = number_json(factor * parsed.number);
  }
  return out;
}

template <class T>
OrderedJson list_or_null(const std::vector<T>& list) {
  return list.empty() ? OrderedJson(nullptr) : OrderedJson(list);
}

// The names that peft reads. For what is said otherwise than by a list of names: the last words of
// the adapted modules.
OrderedJson target_json(const ModelConfig& model) {
  const LoraConfig& lora = model.lora;
  if (!lora.target_regex.empty()) return lora.target_regex;
  bool named = !lora.target_modules.empty() && lora.target_modules.front() != "all-linear";
  if (named) return lora.target_modules;
  if (lora.target_modules.empty() && !lora.target_parameters.empty()) return nullptr;
  std::set<std::string> words;
  for (const std::string& name : adapted_names(model))
    words.insert(name.substr(name.rfind('.') + 1));
  return words;
}

}  // namespace

std::string adapter_config_text(const ModelConfig& model, const std::string& base) {
  const LoraConfig& lora = model.lora;
  // The files of PiSSA have its frozen factors besides the trained ones.
  const bool pissa = lora.init == LoraInit::kPissa;
  const double ranks = pissa ? 2 : 1, alphas = pissa && lora.rslora ? std::sqrt(2.0) : ranks;
  std::vector<std::string> saved = lora.modules_to_save;
  bool has_head = std::ranges::find(saved, "score") != saved.end();
  if (model.num_labels > 0 && !has_head) saved.emplace_back("score");
  OrderedJson out;
  out["base_model_name_or_path"] = base;
  out["bias"] = "none";
  out["fan_in_fan_out"] = model.family == "gpt2";
  out["inference_mode"] = true;
  out["init_lora_weights"] = true;
  out["layers_pattern"] = list_or_null(lora.layers_pattern);
  out["layers_to_transform"] = list_or_null(lora.layers);
  out["lora_alpha"] = number_json(alphas * lora.alpha);
  out["lora_dropout"] = lora.dropout;
  out["modules_to_save"] = list_or_null(saved);
  out["peft_type"] = "LORA";
  out["r"] = static_cast<std::int64_t>(ranks) * lora.rank;
  out["revision"] = nullptr;
  out["target_modules"] = target_json(model);
  out["task_type"] = model.num_labels > 0 ? "SEQ_CLS" : "CAUSAL_LM";
  if (lora.init == LoraInit::kGaussian) out["init_lora_weights"] = "gaussian";
  if (lora.rslora) out["use_rslora"] = true;
  if (lora.dora) out["use_dora"] = true;
  if (copies_tied_embedding(model)) out["ensure_weight_tying"] = true;
  if (!lora.exclude_regex.empty()) out["exclude_modules"] = lora.exclude_regex;
  if (!lora.exclude_modules.empty()) out["exclude_modules"] = lora.exclude_modules;
  if (!lora.target_parameters.empty()) out["target_parameters"] = lora.target_parameters;
  if (!lora.rank_pattern.empty()) {
    out["rank_pattern"] = pattern_json(lora.rank_pattern, ranks, "--lora-rank-pattern");
  }
  if (!lora.alpha_pattern.empty()) {
    out["alpha_pattern"] = pattern_json(lora.alpha_pattern, alphas, "--lora-alpha-pattern");
  }
  return out.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

}  // namespace bev
