#include "models/lora_config.h"

#include <charconv>
#include <cmath>

#include "base/error.h"
#include "base/fields.h"
#include "base/json_check.h"

namespace bev {

void LoraConfig::fields(FieldList& list) {
  list.section(kSection);
  list.add("lora-rank", rank,
           "train low-rank adapters of this rank and freeze the model; 0: train the model")
      .min(0)
      .limit(1 << 16);
  list.add("lora-alpha", alpha, "adapters are multiplied by alpha / rank").above(0);
  list.add("lora-dropout", dropout, "share of the inputs of adapters that training leaves out")
      .min(0)
      .below(1);
  list.add("use-rslora", rslora, "adapters are multiplied by alpha / sqrt(rank)");
  list.add("use-dora", dora,
           "DoRA: a trained magnitude for each row of the adapted weights, which are normalised");
  list.add(
      "lora-init", init,
      {{"default", LoraInit::kDefault},
       {"gaussian", LoraInit::kGaussian},
       {"pissa", LoraInit::kPissa}},
      "initial A: uniform within 1 / sqrt(inputs), or normal with deviation 1 / rank, and B is "
      "0; pissa: A and B are the part of the weight with the largest singular values");
  list.add("lora-target-modules", target_modules,
           "modules of the Hugging Face model with adapters, by name or end of name; all-linear: "
           "every linear layer but the head")
      .defaults_to("those that peft adapts in the family");
  list.add("lora-target-regex", target_regex,
           "regular expression for whole names of modules, instead of --lora-target-modules");
  list.add("lora-exclude-modules", exclude_modules,
           "modules without adapters, by name or end of name");
  list.add("lora-exclude-regex", exclude_regex,
           "regular expression for whole names, instead of --lora-exclude-modules");
  list.add("lora-modules-to-save", modules_to_save,
           "embeddings, norms or heads that train as a whole, by end of name, such as embed_tokens "
           "lm_head");
  list.add("lora-target-parameters", target_parameters,
           "weights of all experts with adapters, such as mlp.experts.gate_up_proj");
  list.add("lora-layers", layers, "layers with adapters, from 0").min(0).defaults_to("all");
  list.add("lora-layers-pattern", layers_pattern,
           "names before the number of a layer, as peft's layers_pattern")
      .defaults_to("any");
  list.add("lora-rank-pattern", rank_pattern,
           "PATTERN=RANK: another rank for modules whose names end with a match of the regular "
           "expression; the first match counts");
  list.add("lora-alpha-pattern", alpha_pattern, "PATTERN=ALPHA: the same for alpha");
}

NumberPattern parse_number_pattern(const std::string& text, const char* flag) {
  std::size_t equals = text.rfind('=');
  NumberPattern out;
  bool ok = equals != std::string::npos && equals > 0;
  if (ok) {
    out.pattern = text.substr(0, equals);
    const char* end = text.data() + text.size();
    auto [rest, error] = std::from_chars(text.data() + equals + 1, end, out.number);
    ok = error == std::errc() && rest == end && std::isfinite(out.number) && out.number > 0;
  }
  BEV_CHECK(ok, ErrorKind::kConfig, flag, ": ", quote(text),
            " is not PATTERN=NUMBER with a number above 0");
  return out;
}

std::vector<std::string> LoraConfig::problems() const {
  std::vector<std::string> out;
  if (!used()) return out;
  auto both = [&](bool lists, const std::string& regex, const char* flag, const char* list) {
    if (lists && !regex.empty()) out.push_back(concat(flag, ": excludes ", list, "; keep one"));
  };
  both(!target_modules.empty(), target_regex, "--lora-target-regex", "--lora-target-modules");
  both(!exclude_modules.empty(), exclude_regex, "--lora-exclude-regex", "--lora-exclude-modules");
  if (dora && init == LoraInit::kPissa) {
    out.push_back("--use-dora: excludes --lora-init pissa; leave one out");
  }
  if (dora && !target_parameters.empty()) {
    out.push_back("--use-dora: excludes --lora-target-parameters, as in peft");
  }
  if (!layers_pattern.empty() && layers.empty()) {
    out.push_back("--lora-layers-pattern: needs --lora-layers");
  }
  auto parse = [&](const std::string& text, const char* flag, bool whole) {
    try {
      double number = parse_number_pattern(text, flag).number;
      if (whole && number != std::floor(number)) {
        out.push_back(concat(flag, ": ", quote(text), " has a rank that is no whole number"));
      }
    } catch (const Error& error) {
      out.emplace_back(error.what());
    }
  };
  for (const std::string& text : rank_pattern) parse(text, "--lora-rank-pattern", true);
  for (const std::string& text : alpha_pattern) parse(text, "--lora-alpha-pattern", false);
  return out;
}

}  // namespace bev
