// Which weights of a model LoraConfig adapts, by peft's rules on the names of the Hugging Face
// model's modules. A fused weight of ours is several modules there, each with an adapter of its
// own.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/function_ref.h"
#include "models/config.h"
#include "models/families/param_mapping.h"
#include "nn/adapter.h"

namespace bev {

// Rows of a weight that are one module of the Hugging Face model, and their adapter.
struct AdaptedModule {
  LowRankSpec spec;
  std::vector<std::string> names;  // one; for the linear layers of experts one per expert
  WeightKind kind = WeightKind::kPlain;
  std::vector<MovedRows> order = {};  // of the module's rows; empty: as they are
  bool all_experts = false;  // one parameter with the weights of all experts (target_parameters)
};

// The rules of a model, ready to be applied to its weights.
class LoraRules {
 public:
  // Throws Error(kConfig) if a regular expression is invalid, or if nothing says which modules have
  // adapters.
  LoraRules(const ModelConfig& model, const LoraConfig& lora, int number = 0);
  ~LoraRules();
  LoraRules(LoraRules&&) noexcept;

  // The adapters of the weight of a linear layer or an embedding; empty: none. PiSSA's have one
  // with the opposite factors behind them. Throws Error(kConfig) if the rules treat experts of a
  // layer differently, or ask for what there is not.
  std::vector<AdaptedModule> find(const Param& weight) const;

 private:
  struct Numbers {
    std::int64_t rank = 0;
    double alpha = 0;
    bool operator==(const Numbers&) const = default;
  };
  struct Patterns;

  bool excluded(std::string_view module) const;
  bool targeted(std::string_view module) const;
  std::optional<Numbers> numbers_of(std::string_view module) const;
  bool in_layers(std::string_view module) const;
  std::optional<AdaptedModule> make_module(const Param& weight, Range rows,
                                           std::vector<std::string> names) const;
  std::optional<AdaptedModule> make_parameter(const Param& weight, const std::string& name) const;
  std::vector<AdaptedModule> find_table(const Param& table, const std::string& name) const;
  void check_kind(const AdaptedModule& module, bool experts) const;
  LowRankSpec spec_of(const Param& weight, Range rows, const std::string& name,
                      const Numbers& numbers) const;

  const ModelConfig& model_;
  const LoraConfig& lora_;
  int number_;
  std::vector<std::string> targets_;
  bool all_linear_ = false;
  std::unique_ptr<const Patterns> patterns_;
};

// The model without its adapters.
ModelConfig without_adapters(ModelConfig model);
// The rules of all adapters of the model.
std::vector<LoraRules> lora_rules(const ModelConfig& model);
// Whether the parameter has a trained copy (modules_to_save). Throws Error(kConfig) if it is
// neither of an embedding, a norm or a head, or if only a part of it is meant.
bool is_saved_whole(const ModelConfig& model, const Param& param);
// Whether the copy of an embedding is that of the head too.
bool copies_tied_embedding(const ModelConfig& model);
// Calls use(param, copy) for every parameter with a trained copy, in the model's order.
void for_each_copy(const ModelConfig& model,
                   FunctionRef<void(const Param& param, const Param& copy)> use);
// Calls use(weight, module) for the adapter of each module, in the model's order. `rules` is one of
// lora_rules(model).
void for_each_adapter(const ModelConfig& model, const LoraRules& rules,
                      FunctionRef<void(const Param& weight, const AdaptedModule& module)> use);
// The names of the modules with adapters, in the model's order.
std::vector<std::string> adapted_names(const ModelConfig& model);
// Rules that the model breaks.
std::vector<std::string> lora_problems(const ModelConfig& model);

}  // namespace bev
