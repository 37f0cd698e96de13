// LoRA adapters merged into the weights of their model: W + scale * B A, with DoRA multiplied by
// magnitude over norm, computed in f64 and rounded once. Modules that were trained as a whole
// replace those of the model.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "bridge/weight_export.h"
#include "models/lora.h"

namespace bev {

class MergedWeights final : public ParamSource {
 public:
  // Reads a whole parameter of the adapter.
  using ReadAdapter = FunctionRef<void(const Param& param, std::span<double> out)>;
  // `base` has the weights of the model without its adapter; it must outlive the object.
  MergedWeights(const ModelConfig& model, ParamSource& base, ReadAdapter read);

  // Number of merged modules of the Hugging Face model.
  std::int64_t modules() const { return modules_; }
  bool changes(const std::string& param) const {
    return adapted_.contains(param) || copies_.contains(param);
  }

  Dtype dtype(const ParamMapping& mapping, std::size_t part) const override {
    return base_.dtype(mapping, part);
  }
  std::span<const std::byte> stored(const ParamMapping& mapping, std::size_t part,
                                    Dtype dtype) override;
  void read(const ParamMapping& mapping, Range elements, Dtype dtype, void* out) override;

 private:
  // An adapter of rows of a weight, of each expert.
  struct Factors {
    Range rows;
    std::int64_t rank = 0;
    double scale = 1;
    bool embedding = false;
    std::vector<double> a, b, magnitude;
  };
  void add(const Factors& factors, std::int64_t expert, std::int64_t row,
           std::span<double> values) const;

  ParamSource& base_;
  std::int64_t modules_ = 0;
  std::map<std::string, std::vector<Factors>> adapted_;  // by weight
  std::map<std::string, std::vector<double>> copies_;
};

}  // namespace bev
