// Weight map between our parameters and Hugging Face's tensors: which tensors form a parameter, and
// conversion both ways. Parameters are whole here (global shape, row-major); sharding is done by
// the caller.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "autograd/param.h"
#include "bridge/nf4_tensor.h"
#include "bridge/quantized_source.h"
#include "bridge/safetensors.h"
#include "bridge/weight_files.h"
#include "comm/placement.h"
#include "models/config.h"
#include "models/families/family.h"
#include "models/families/param_mapping.h"

namespace bev {

class WeightMap {
 public:
  // The map of a model without its adapters.
  explicit WeightMap(const ModelConfig& config);
  // The map of other files, which `described_by` describes.
  // Tensors whose names end with one of `ignored` are not looked at.
  WeightMap(std::vector<ParamMapping> params, std::string described_by,
            std::vector<std::string> ignored = {})
      : params_(std::move(params)),
        described_by_(std::move(described_by)),
        ignored_(std::move(ignored)) {}

  // All parameters of the model, in its order.
  const std::vector<ParamMapping>& params() const { return params_; }
  const ParamMapping& find(std::string_view param) const;

  // Throws Error(kInput) that lists tensors which are missing, of the wrong shape, not
  // floating-point or unknown to the model, and a stored head that differs from its tied embedding.
  // Files need not have the parameters `absent`.
  void check(const WeightFiles& files, std::span<const std::string> absent = {}) const;
  // Heads that the model got and the files do not have, which `other` describes.
  std::vector<std::string> heads_not_in(const WeightMap& other, const WeightFiles& files) const;

 private:
  std::vector<ParamMapping> params_;
  std::string described_by_ = "config.json";
  bool ignores(std::string_view name) const;

  std::vector<std::string> ignored_;
  std::string further_layers_;
  std::int64_t layers_ = 0;
  std::vector<std::string> tied_heads_;  // names of a head that a tied model may store
};

// Dtype of a tensor; of a quantised one (MXFP4, FP8, NF4) that of the values it stands for.
Dtype dtype_of_part(const ParamMapping& mapping, std::size_t part, const WeightFiles& files);
// True if the files hold the tensor quantised; StoredParam dequantises it.
bool stored_packed(const ParamMapping& mapping, std::size_t part, const WeightFiles& files);
// One tensor under any of its names, possibly as part of a larger one. Throws Error(kInput) if it
// is missing or its dtype is not supported.
TensorBytes stored_tensor(const ParamMapping& mapping, std::size_t part, const WeightFiles& files);

// Null if the tensor is not stored in NF4.
std::unique_ptr<StoredNf4> open_nf4_part(const ParamMapping& mapping, std::size_t part,
                                         const WeightFiles& files);
// Elements [tensor_begin, ..) of a part are [param_begin, ..) of the flattened parameter; for parts
// that are quantised in our order the whole parameter.
struct PartRun {
  std::int64_t tensor_begin = 0, param_begin = 0, count = 0;
};
std::vector<PartRun> part_runs(const ParamMapping& mapping, std::size_t part);

// Builds the parameter from its tensors in `dtype` at `out`, rounding to nearest even. Sources may
// be unaligned. Throws Error(kInput) naming the tensor if a shape or dtype does not match.
void assemble(const ParamMapping& mapping, std::span<const TensorBytes> sources, Dtype dtype,
              void* out);
// The same with the sources looked up in the files.
void read_param(const ParamMapping& mapping, const WeightFiles& files, Dtype dtype, void* out);

// Reads element ranges of one parameter from its tensors. If the rows are in the same order, only
// the requested elements are read.
class StoredParam {
 public:
  // Both must outlive it. Throws Error(kInput) like read_param.
  StoredParam(const ParamMapping& mapping, const WeightFiles& files);
  // Reads elements of the flattened parameter, converted to `dtype`.
  void read(Range elements, Dtype dtype, void* out);

 private:
  const ParamMapping& mapping_;
  std::vector<TensorBytes> sources_;
  bool in_order_;  // the concatenated sources are the flattened parameter
  std::vector<std::unique_ptr<QuantizedSource>> quantized_;
  std::vector<std::vector<std::byte>> dequantized_;  // in f32, if rows are reordered
  std::vector<std::byte> whole_;  // in whole_dtype_, if rows or columns are reordered
  Dtype whole_dtype_ = Dtype::kF32;
  std::vector<std::byte> expanded_;  // MXFP4 dequantised to bf16
};

// Inverse: writes the Hugging Face tensor mapping.tensors[part] of the whole parameter `value`.
// With equal dtypes, the round trip is bit-exact.
void split_param(const ParamMapping& mapping, std::size_t part, const void* value, Dtype dtype,
                 Dtype out_dtype, void* out);

// Elements of the flattened parameter that form the tensor unchanged; nullopt if it is reordered.
std::optional<Range> elements_of_part(const ParamMapping& mapping, std::size_t part);

// Tensors of an export, in the model's order: tensors[i] is part `part` of params()[param], or a
// piece of it in NF4.
struct ExportTensor {
  TensorSpec spec;
  std::size_t param = 0, part = 0;
  std::optional<Nf4Piece> piece = {};
  Nf4Format nf4 = {};
};
std::vector<ExportTensor> export_tensors(const WeightMap& map, Dtype dtype);

}  // namespace bev
