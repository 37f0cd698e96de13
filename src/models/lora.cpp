#include "models/lora.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "models/model.h"
#include "tokenizer/text/regex.h"

namespace bev {

namespace {

constexpr std::string_view kAllLinear = "all-linear";

// What peft adapts in a family if nothing else is said.
std::vector<std::string> usual_targets(const std::string& family) {
  constexpr auto kQueryAndValue = std::to_array<std::string_view>(
      {"llama", "mistral", "mixtral", "gemma2", "gemma3_text", "qwen2", "qwen3"});
  if (std::ranges::find(kQueryAndValue, family) != kQueryAndValue.end()) {
    return {"q_proj", "v_proj"};
  }
  if (family == "gpt2") return {"c_attn"};
  if (family == "gpt_neox") return {"query_key_value"};
  return {};
}

bool ends_with_name(std::string_view module, std::string_view name) {
  return module == name || (module.size() > name.size() && module.ends_with(name) &&
                            module[module.size() - name.size() - 1] == '.');
}

bool any_ends(std::string_view module, std::span<const std::string> names) {
  return std::ranges::any_of(names,
                             [&](const std::string& name) { return ends_with_name(module, name); });
}

// A regular expression that must match a whole name.
class NamePattern {
 public:
  NamePattern(const std::string& pattern, const char* flag) : regex_(compile(pattern, flag)) {}
  bool matches(std::string_view name) const {
    std::optional<Match> match = Regex::Matches(regex_, name).next();
    return match && match->begin == 0 && match->end == name.size();
  }

 private:
  static Regex compile(const std::string& pattern, const char* flag) {
    try {
      return Regex(concat("\\A(?:", pattern, ")\\z"), RegexDialect::kFancy);
    } catch (const Error& error) {
      BEV_FAIL(ErrorKind::kConfig, flag, ": ", error.what());
    }
  }

  Regex regex_;
};

struct NumberRule {
  NamePattern pattern;
  double number;
};

std::vector<NumberRule> number_rules(std::span<const std::string> texts, const char* flag) {
  std::vector<NumberRule> rules;
  for (const std::string& text : texts) {
    NumberPattern parsed = parse_number_pattern(text, flag);
    rules.push_back(
        {NamePattern(concat("(?:.*\\.)?(?:", parsed.pattern, ")"), flag), parsed.number});
  }
  return rules;
}

double first_match(std::span<const NumberRule> rules, std::string_view module, double otherwise) {
  for (const NumberRule& rule : rules) {
    if (rule.pattern.matches(module)) return rule.number;
  }
  return otherwise;
}

std::string last_word(const std::string& name) { return name.substr(name.rfind('.') + 1); }

std::string without_weight(const std::string& tensor) {
  constexpr std::string_view kWeight = ".weight";
  return tensor.ends_with(kWeight) ? tensor.substr(0, tensor.size() - kWeight.size()) : tensor;
}

// The modules that train as a whole; a new head for labels cannot but be one.
std::vector<std::string> saved_modules(const ModelConfig& model) {
  std::vector<std::string> names = model.lora.modules_to_save;
  if (model.num_labels > 0) names.emplace_back("score");
  return names;
}

// Whether a tensor is one of such a module, or of a module within it.
bool belongs_to(std::string_view tensor, std::string_view module) {
  for (std::size_t dot = tensor.rfind('.'); dot != tensor.npos; dot = tensor.rfind('.', dot - 1)) {
    if (tensor.substr(0, dot).ends_with(module)) return true;
    if (dot == 0) break;
  }
  return false;
}

// How files of the family have the weight; as a tensor of the same name if the family knows
// nothing of it.
ParamMapping mapping_of(const Param& weight, const ModelConfig& model) {
  if (model.architecture == nullptr) {
    std::optional<ParamMapping> found = find_mapping(weight, model, find_family(model.family));
    if (found) return *std::move(found);
  }
  ParamMapping own;
  own.param = weight.name;
  own.shape = weight.shape;
  own.tensors = {{weight.name, {}, weight.shape}};
  return own;
}

}  // namespace

struct LoraRules::Patterns {
  std::optional<NamePattern> target, exclude;
  std::vector<NumberRule> rank, alpha;
};

LoraRules::LoraRules(const ModelConfig& model, const LoraConfig& lora, int number)
    : model_(model), lora_(lora), number_(number) {
  auto patterns = std::make_unique<Patterns>();
  if (!lora.target_regex.empty()) {
    patterns->target.emplace(lora.target_regex, "--lora-target-regex");
  }
  if (!lora.exclude_regex.empty()) {
    patterns->exclude.emplace(lora.exclude_regex, "--lora-exclude-regex");
  }
  patterns->rank = number_rules(lora.rank_pattern, "--lora-rank-pattern");
  patterns->alpha = number_rules(lora.alpha_pattern, "--lora-alpha-pattern");
  patterns_ = std::move(patterns);
  targets_ = lora.target_modules;
  all_linear_ = targets_.size() == 1 && targets_.front() == kAllLinear;
  if (!targets_.empty() || !lora.target_regex.empty() || !lora.target_parameters.empty()) return;
  targets_ = usual_targets(model.family);
  BEV_CHECK(!targets_.empty(), ErrorKind::kConfig, "--lora-target-modules: is missing; for the ",
            "family ", model.family, " nothing is usual; give names of modules, or all-linear");
}

LoraRules::~LoraRules() = default;
LoraRules::LoraRules(LoraRules&&) noexcept = default;

bool LoraRules::excluded(std::string_view module) const {
  if (patterns_->exclude) return patterns_->exclude->matches(module);
  return any_ends(module, lora_.exclude_modules);
}

// The number after the first of the names counts.
bool LoraRules::in_layers(std::string_view module) const {
  if (lora_.layers.empty()) return true;
  const std::vector<std::string> words = split(module, '.');
  for (std::size_t i = 1; i + 1 < words.size(); ++i) {
    std::int64_t layer = -1;
    const char* end = words[i].data() + words[i].size();
    auto [rest, error] = std::from_chars(words[i].data(), end, layer);
    if (error != std::errc() || rest != end) continue;
    bool any = lora_.layers_pattern.empty();
    if (!any &&
        std::ranges::find(lora_.layers_pattern, words[i - 1]) == lora_.layers_pattern.end()) {
      continue;
    }
    return std::ranges::find(lora_.layers, layer) != lora_.layers.end();
  }
  return false;
}

bool LoraRules::targeted(std::string_view module) const {
  if (all_linear_) return true;
  if (patterns_->target) return patterns_->target->matches(module);
  if (std::ranges::find(targets_, module) != targets_.end()) return true;
  return any_ends(module, targets_) && in_layers(module);
}

std::optional<LoraRules::Numbers> LoraRules::numbers_of(std::string_view module) const {
  auto saved = [&](const std::string& name) { return module.ends_with(name); };
  if (excluded(module) || !targeted(module)) return std::nullopt;
  if (std::ranges::any_of(saved_modules(model_), saved)) return std::nullopt;
  double rank = first_match(patterns_->rank, module, static_cast<double>(lora_.rank));
  return Numbers{static_cast<std::int64_t>(rank),
                 first_match(patterns_->alpha, module, lora_.alpha)};
}

LowRankSpec LoraRules::spec_of(const Param& weight, Range rows, const std::string& name,
                               const Numbers& numbers) const {
  LowRankSpec spec;
  spec.part = last_word(name);
  spec.rows = rows;
  spec.rank = numbers.rank;
  spec.dropout = lora_.dropout;
  spec.magnitude = lora_.dora;
  spec.number = number_;
  auto rank = static_cast<double>(numbers.rank);
  spec.scale = numbers.alpha / (lora_.rslora ? std::sqrt(rank) : rank);
  auto in = static_cast<double>(weight.shape[weight.shape.ndim() - 1]);
  spec.init = lora_.init == LoraInit::kGaussian ? InitRule{InitKind::kNormal, 1 / rank}
                                                : InitRule{InitKind::kUniform, 1 / std::sqrt(in)};
  return spec;
}

std::optional<AdaptedModule> LoraRules::make_module(const Param& weight, Range rows,
                                                    std::vector<std::string> names) const {
  std::optional<Numbers> numbers = numbers_of(names.front());
  for (const std::string& name : names) {
    BEV_CHECK(numbers_of(name) == numbers, ErrorKind::kConfig, "--lora-target-modules: the rules ",
              "treat ", names.front(), " and ", name,
              " differently; the experts of a layer all have the same adapters");
  }
  if (!numbers) return std::nullopt;
  return AdaptedModule{spec_of(weight, rows, names.front(), *numbers), std::move(names)};
}

// peft's target_parameters; no regular expressions, no layers.
std::optional<AdaptedModule> LoraRules::make_parameter(const Param& weight,
                                                       const std::string& name) const {
  if (!any_ends(name, lora_.target_parameters)) return std::nullopt;
  Range rows{0, weight.shape[weight.shape.ndim() - 2]};
  double rank = first_match(patterns_->rank, name, static_cast<double>(lora_.rank));
  Numbers numbers{static_cast<std::int64_t>(rank),
                  first_match(patterns_->alpha, name, lora_.alpha)};
  AdaptedModule module{spec_of(weight, rows, name, numbers), {name}};
  module.all_experts = true;
  return module;
}

// Tables have adapters if they are looked up. peft takes them for no linear layers.
std::vector<AdaptedModule> LoraRules::find_table(const Param& table,
                                                 const std::string& name) const {
  std::optional<Numbers> numbers = all_linear_ ? std::nullopt : numbers_of(name);
  if (!numbers) return {};
  BEV_CHECK(table.name.starts_with("embedding.word"), ErrorKind::kConfig,
            "--lora-target-modules: ", name, " has no adapters; --lora-modules-to-save trains it ",
            "as a whole, --lora-exclude-modules leaves it out");
  BEV_CHECK(!lora_.dora && lora_.init != LoraInit::kPissa, ErrorKind::kConfig,
            lora_.dora ? "--use-dora: " : "--lora-init pissa: ", name,
            " is an embedding, whose adapters have none; leave it out by --lora-exclude-modules");
  AdaptedModule module{spec_of(table, {0, table.shape[0]}, name, *numbers), {name}};
  module.spec.embedding = true;
  module.spec.dropout = 0;
  module.spec.init = {InitKind::kNormal, 1};
  return {std::move(module)};
}

void LoraRules::check_kind(const AdaptedModule& module, bool experts) const {
  const char* flag = lora_.dora                       ? "--use-dora: "
                     : lora_.init == LoraInit::kPissa ? "--lora-init pissa: "
                     : lora_.dropout > 0              ? "--lora-dropout: "
                                                      : nullptr;
  BEV_CHECK(!experts || flag == nullptr, ErrorKind::kConfig, flag, module.names.front(),
            " belongs to experts, whose adapters have no such thing; leave it out by "
            "--lora-exclude-modules");
}

std::vector<AdaptedModule> LoraRules::find(const Param& weight) const {
  // Hugging Face models have no layers of multi-token prediction.
  if (weight.name.starts_with("mtp.")) return {};
  const ParamMapping mapping = mapping_of(weight, model_);
  if (weight.table) return find_table(weight, without_weight(mapping.tensors.front().name));
  std::vector<AdaptedModule> modules;
  const bool experts = weight.shape.ndim() == 3;
  auto add = [&](AdaptedModule module) {
    check_kind(module, experts);
    module.kind = mapping.kind;
    modules.push_back(std::move(module));
    if (lora_.init != LoraInit::kPissa) return;
    modules.push_back(modules.back());
    modules.back().spec.opposite = true;
    modules.back().spec.dropout = 0;
  };
  if (experts) {
    const std::string& whole = mapping.kind == WeightKind::kExperts && !mapping.whole_names.empty()
                                   ? mapping.whole_names.front()
                                   : mapping.tensors.front().name;
    if (auto parameter = make_parameter(weight, whole)) add(*std::move(parameter));
  }
  const std::size_t parts =
      experts ? mapping.tensors.size() /
                    static_cast<std::size_t>(std::max<std::int64_t>(weight.shape[0], 1))
              : mapping.tensors.size();
  const std::int64_t out = weight.shape[weight.shape.ndim() - 2];
  std::int64_t row = 0;
  for (std::size_t part = 0; part < parts; ++part) {
    std::vector<std::string> names;
    for (std::size_t i = part; i < mapping.tensors.size(); i += parts) {
      names.push_back(without_weight(mapping.tensors[i].name));
      if (!experts) break;
    }
    std::int64_t rows = parts == 1 ? out : mapping.tensors[part].shape[0];
    std::optional<AdaptedModule> module = make_module(weight, {row, row + rows}, std::move(names));
    row += rows;
    if (!module) continue;
    module->order = order_of_rows(mapping, row - rows, row);
    BEV_CHECK(modules.empty() || !modules.front().all_experts, ErrorKind::kConfig,
              "--lora-target-parameters: ", modules.front().names.front(),
              " has an adapter by --lora-target-modules too; keep one");
    add(*std::move(module));
  }
  return modules;
}

std::vector<LoraRules> lora_rules(const ModelConfig& model) {
  std::vector<LoraRules> rules;
  if (!model.lora.used()) return rules;
  rules.emplace_back(model, model.lora);
  for (const LoraConfig& lora : model.more_loras) {
    rules.emplace_back(model, lora, static_cast<int>(rules.size()));
  }
  return rules;
}

void for_each_adapter(const ModelConfig& model, const LoraRules& rules,
                      FunctionRef<void(const Param& weight, const AdaptedModule& module)> use) {
  std::vector<Param> params = declare_params(model);
  std::set<std::string_view> declared;
  for (const Param& param : params) declared.insert(param.name);
  for (const Param& param : params) {
    if (param.shape.ndim() < 2 || is_adapter(param)) continue;
    for (const AdaptedModule& module : rules.find(param)) {
      if (declared.contains(make_low_rank(param, module.spec).a.name)) use(param, module);
    }
  }
}

ModelConfig without_adapters(ModelConfig model) {
  model.lora = {};
  model.more_loras.clear();
  return model;
}

std::vector<std::string> adapted_names(const ModelConfig& model) {
  std::vector<std::string> names;
  LoraRules rules(model, model.lora);
  for_each_adapter(model, rules, [&](const Param&, const AdaptedModule& module) {
    if (!module.spec.opposite) names.insert(names.end(), module.names.begin(), module.names.end());
  });
  return names;
}

bool is_saved_whole(const ModelConfig& model, const Param& param) {
  const std::vector<std::string> names = saved_modules(model);
  if (names.empty() || is_adapter(param) || param.name.starts_with("mtp.")) return false;
  const ParamMapping mapping = mapping_of(param, model);
  auto saved = [&](const HfTensor& tensor) {
    return std::ranges::any_of(
        names, [&](const std::string& name) { return belongs_to(tensor.name, name); });
  };
  const auto found = std::ranges::count_if(mapping.tensors, saved);
  if (found == 0) return false;
  const std::string& name = std::ranges::find_if(mapping.tensors, saved)->name;
  const bool whole = param.table || param.shape.ndim() == 1 || param.name == kLabelHead;
  BEV_CHECK(whole && found == std::ssize(mapping.tensors), ErrorKind::kConfig,
            "--lora-modules-to-save: ", without_weight(name), " is neither an embedding, a norm ",
            "nor a head; adapt it by --lora-target-modules");
  return true;
}

void for_each_copy(const ModelConfig& model,
                   FunctionRef<void(const Param& param, const Param& copy)> use) {
  if (!model.lora.used() || saved_modules(model).empty()) return;
  for (const Param& param : declare_params(without_adapters(model))) {
    if (is_saved_whole(model, param)) use(param, trained_copy_of(param));
  }
}

bool copies_tied_embedding(const ModelConfig& model) {
  bool copied = false;
  for_each_copy(model, [&](const Param& param, const Param&) {
    copied = copied || param.name.starts_with("embedding.word");
  });
  return copied && !model.untie_embeddings_and_output_weights && model.num_labels == 0;
}

namespace {

// The head of a language model; of a tied one, that of an untied one.
Param head_of(const std::vector<Param>& params) {
  Param head;
  head.name = "output_layer.weight";
  head.shape = params.front().shape;
  head.table = true;
  return head;
}

void add_copy_problems(const ModelConfig& model, std::vector<std::string>& out) {
  std::vector<std::string> tensors;
  for_each_copy(model, [&](const Param& param, const Param&) {
    for (const HfTensor& tensor : mapping_of(param, model).tensors) tensors.push_back(tensor.name);
  });
  const bool tied = copies_tied_embedding(model);
  if (tied && !model.lora.weight_tying) {
    out.push_back(
        "modules_to_save: the embedding and the head of the model are one weight, and this adapter "
        "has a copy of one of them; train it with peft's ensure_weight_tying");
  }
  for (const std::string& name : model.lora.modules_to_save) {
    auto within = [&](const std::string& tensor) { return belongs_to(tensor, name); };
    // peft lists both for every model with labels, and the head of a tied one.
    if (std::ranges::any_of(tensors, within) || name == "score" || name == "classifier") continue;
    if (tied && belongs_to("lm_head.weight", name)) continue;
    out.push_back(concat("--lora-modules-to-save: no module of the model has the name ", name));
  }
}

}  // namespace

std::vector<std::string> lora_problems(const ModelConfig& model) {
  if (!model.lora.used()) return {};
  std::vector<std::string> out = model.lora.problems();
  if (!out.empty()) return out;
  try {
    bool any = false, embeds = false;
    LoraRules rules(model, model.lora);
    for_each_adapter(model, rules, [&](const Param&, const AdaptedModule& module) {
      any = true;
      embeds = embeds || module.spec.embedding;
    });
    const std::vector<Param> params = declare_params(without_adapters(model));
    if (model.num_labels == 0) rules.find(head_of(params));
    add_copy_problems(model, out);
    if (embeds && model.mtp_num_layers > 0) {
      out.push_back(
          "--lora-target-modules: an embedding that multi-token prediction uses too has "
          "no adapters; leave it out by --lora-exclude-modules");
    }
    if (any) return out;
  } catch (const Error& error) {
    return {error.what()};
  }
  return {
      "--lora-target-modules: no linear layer of the model has such a name; names are those of the "
      "Hugging Face model, such as q_proj"};
}

}  // namespace bev
