// How the Hugging Face tensors of a model form our parameters, by the names and rules of its
// family.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "autograd/param.h"
#include "models/families/family.h"

namespace bev {

// A Hugging Face tensor.
struct HfTensor {
  std::string name;                      // name that we write
  std::vector<std::string> other_names;  // alternative names in files
  Shape shape;
};

// Rows of a tensor, and where they are in our parameter.
struct MovedRows {
  std::size_t part = 0;
  std::int64_t tensor_row = 0, param_row = 0, count = 0;
};

// How one parameter is composed.
struct ParamMapping {
  std::string param;
  Shape shape;
  WeightKind kind = WeightKind::kPlain;
  std::int64_t head_size = 0;         // for kNeoxQkv
  std::vector<HfTensor> tensors;      // in the order of our rows
  std::vector<MovedRows> order = {};  // of rows that are in another order; empty: one after another
  // Names of a single tensor that may hold the whole parameter in our layout instead.
  std::vector<std::string> whole_names = {};
  // Files may hold it in MXFP4, as NAME_blocks and NAME_scales.
  bool packed = false;
  ParamFormat format = ParamFormat::kModel;  // kF32: f32 in 16-bit files too
  bool linear = false;                       // of Param
};

// Our name and Hugging Face's of the head for sequence classification, in all families.
inline constexpr std::string_view kLabelHead = "score.weight";
// The head of a critic, which no file of Hugging Face's has.
inline constexpr std::string_view kValueHead = "value_head.weight";

// nullopt if the family has no such weights.
std::optional<ParamMapping> find_mapping(const Param& param, const ModelConfig& config,
                                         const ModelFamily& family);
// Throws Error(kConfig) if the family has no such weights.
ParamMapping map_param(const Param& param, const ModelConfig& config, const ModelFamily& family);

// Rows [begin, end) of the parameter, which are whole tensors, as a parameter of their own.
std::vector<MovedRows> order_of_rows(const ParamMapping& mapping, std::int64_t begin,
                                     std::int64_t end);
// True if the single tensor is the parameter's transpose.
bool transposed(const ParamMapping& mapping);
// True if the single tensor is the parameter in another shape (kUnitRow, kScalar).
bool reshaped(const ParamMapping& mapping);
// True if it is an expert parameter whose tensor has all experts as columns (kExpertColumns,
// kGateUpColumns).
bool has_columns(const ParamMapping& mapping);

}  // namespace bev
