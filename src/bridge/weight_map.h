// Weight map between our parameters and Hugging Face's tensors: which tensors form a parameter, and
// conversion both ways. Parameters are whole here (global shape, row-major); sharding is done by
// the caller.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "autograd/param.h"
#include "bridge/fp8_blocks.h"
#include "bridge/safetensors.h"
#include "bridge/weight_files.h"
#include "comm/placement.h"
#include "models/config.h"
#include "models/families/family.h"

namespace bev {

// A Hugging Face tensor.
struct HfTensor {
  std::string name;                      // name that we write
  std::vector<std::string> other_names;  // alternative names in files
  Shape shape;
};

// How one parameter is composed.
struct ParamMapping {
  std::string param;
  Shape shape;
  WeightKind kind = WeightKind::kPlain;
  std::int64_t head_size = 0;     // for kNeoxQkv
  std::vector<HfTensor> tensors;  // in the order of our rows
  // Names of a single tensor that may hold the whole parameter in our layout instead.
  std::vector<std::string> whole_names = {};
  // Files may hold it in MXFP4, as NAME_blocks and NAME_scales.
  bool packed = false;
  ParamFormat format = ParamFormat::kModel;  // kF32: f32 in 16-bit files too
};

class WeightMap {
 public:
  explicit WeightMap(const ModelConfig& config);

  // All parameters of the model, in its order.
  const std::vector<ParamMapping>& params() const { return params_; }
  const ParamMapping& find(std::string_view param) const;

  // Throws Error(kInput) that lists tensors which are missing, of the wrong shape, not
  // floating-point or unknown to the model, and a stored head that differs from its tied embedding.
  void check(const WeightFiles& files) const;

 private:
  std::vector<ParamMapping> params_;
  bool ignores(std::string_view name) const;

  std::vector<std::string> ignored_;
  std::string further_layers_;
  std::int64_t layers_ = 0;
  std::vector<std::string> tied_heads_;  // names of a head that a tied model may store
};

// True if the files hold the tensor in FP4 or FP8, which StoredParam dequantises.
bool stored_packed(const ParamMapping& mapping, std::size_t part, const WeightFiles& files);
// One tensor under any of its names, possibly as part of a larger one. Throws Error(kInput) if it
// is missing or its dtype is not supported.
TensorBytes stored_tensor(const ParamMapping& mapping, std::size_t part, const WeightFiles& files);

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
  std::vector<std::optional<Fp8Blocks>> blocks_;      // FP8 sources
  std::vector<std::vector<std::byte>> whole_blocks_;  // dequantised to f32, if rows are reordered
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

// Tensors of an export, in the model's order: tensors[i] is part `part` of params()[param].
struct ExportTensor {
  TensorSpec spec;
  std::size_t param = 0, part = 0;
};
std::vector<ExportTensor> export_tensors(const WeightMap& map, Dtype dtype);

}  // namespace bev
