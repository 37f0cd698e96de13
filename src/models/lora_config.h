// LoRA as a user describes it: the settings of peft's LoraConfig, by which modules of the Hugging
// Face model get low-rank adapters. models/lora.h applies them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace bev {

class FieldList;

enum class LoraInit : std::uint8_t { kDefault, kGaussian, kPissa };

struct LoraConfig {
  static constexpr const char* kSection = "lora";

  std::int64_t rank = 0;  // 0: no adapters
  double alpha = 8;
  double dropout = 0;  // of the inputs of A
  bool rslora = false;
  bool dora = false;
  LoraInit init = LoraInit::kDefault;
  // Names of modules or ends of names, or all-linear; empty: those that peft takes for the family.
  std::vector<std::string> target_modules, exclude_modules;
  std::string target_regex, exclude_regex;  // match whole names; instead of the lists
  // Modules whose weights train as a whole copy, by end of name; that of a head for labels always
  // does.
  std::vector<std::string> modules_to_save;
  bool weight_tying = true;  // a copy of a tied embedding is the head's too
  // Parameters with the weights of all experts, such as mlp.experts.gate_up_proj.
  std::vector<std::string> target_parameters;
  // Layers with adapters; empty: all. They are counted after the first of these names.
  std::vector<std::int64_t> layers;
  std::vector<std::string> layers_pattern;
  // PATTERN=NUMBER for the modules whose names end with a match.
  std::vector<std::string> rank_pattern, alpha_pattern;

  bool used() const { return rank > 0; }
  void fields(FieldList& list);
  // Inconsistencies that need no model.
  std::vector<std::string> problems() const;
};

// The parts of PATTERN=NUMBER; the pattern may contain the sign too.
struct NumberPattern {
  std::string pattern;
  double number = 0;
};
// Throws Error(kConfig) naming the flag.
NumberPattern parse_number_pattern(const std::string& text, const char* flag);

}  // namespace bev
