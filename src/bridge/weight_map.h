// Our parameters against Hugging Face's tensors: which ones make up which, and the conversion both
// ways. Parameters are whole here (global shape, row-major); cutting is the caller's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bridge/fp8_blocks.h"
#include "bridge/safetensors.h"
#include "bridge/weight_files.h"
#include "comm/placement.h"
#include "models/config.h"
#include "models/family.h"

namespace bev {

// One Hugging Face tensor.
struct HfTensor {
  std::string name;                      // as we write it
  std::vector<std::string> other_names;  // under which files may hold it instead
  Shape shape;
};

// What one parameter is made of.
struct ParamMapping {
  std::string param;
  Shape shape;
  WeightKind kind = WeightKind::kPlain;
  std::int64_t head_size = 0;     // kNeoxQkv
  std::vector<HfTensor> tensors;  // in the order of our rows
  // Under which files may hold all of it in one tensor instead, laid out as ours.
  std::vector<std::string> whole_names = {};
  // Files may hold it in MXFP4, under the tensor's names with _blocks and _scales behind.
  bool packed = false;
  bool wide = false;  // as of Param: files of 16 bits have it in f32
};

class WeightMap {
 public:
  explicit WeightMap(const ModelConfig& config);

  // Every parameter of the whole model, in the model's order.
  const std::vector<ParamMapping>& params() const { return params_; }
  const ParamMapping& find(std::string_view param) const;

  // Error(kInput) listing tensors that are missing, misshapen, not of a floating type or unknown to
  // the model, and a stored head that differs from the embedding it should be tied to.
  void check(const WeightFiles& files) const;

 private:
  std::vector<ParamMapping> params_;
  bool ignores(std::string_view name) const;

  std::vector<std::string> ignored_;
  std::string further_layers_;
  std::int64_t layers_ = 0;
  std::vector<std::string> tied_heads_;  // names of a head that a tied model may store
};

// Whether the files hold one of its tensors in numbers of 4 or 8 bits, which StoredParam expands.
bool stored_packed(const ParamMapping& mapping, std::size_t part, const WeightFiles& files);
// One of its tensors under whichever name the files hold it, perhaps as a part of a larger one;
// Error(kInput) when they do not, or not in a dtype that we compute with.
TensorBytes stored_tensor(const ParamMapping& mapping, std::size_t part, const WeightFiles& files);

// Builds the parameter from its tensors in `dtype` at `out`, rounding to nearest even. Sources may
// be unaligned. Error(kInput) naming the tensor when a shape or dtype does not fit.
void assemble(const ParamMapping& mapping, std::span<const TensorBytes> sources, Dtype dtype,
              void* out);
// The same with the sources looked up.
void read_param(const ParamMapping& mapping, const WeightFiles& files, Dtype dtype, void* out);

// Elements of one parameter, from the files that hold its tensors: where its rows are theirs in
// order nothing else is looked at.
class StoredParam {
 public:
  // Both must outlive it. Error(kInput) as read_param.
  StoredParam(const ParamMapping& mapping, const WeightFiles& files);
  // Elements of the flattened parameter, in `dtype`.
  void read(Range elements, Dtype dtype, void* out);

 private:
  const ParamMapping& mapping_;
  std::vector<TensorBytes> sources_;
  std::vector<std::optional<Fp8Blocks>> blocks_;      // of a source without bytes of its own
  std::vector<std::vector<std::byte>> whole_blocks_;  // in f32, where they change places
  std::vector<std::byte> whole_;  // in dtype whole_dtype_, where rows or columns change places
  Dtype whole_dtype_ = Dtype::kF32;
  std::vector<std::byte> expanded_;  // in bf16, where the files hold it packed
};

// The inverse, one Hugging Face tensor at a time: mapping.tensors[part] from the whole parameter
// `value`. With the same dtype both ways the bits are kept.
void split_param(const ParamMapping& mapping, std::size_t part, const void* value, Dtype dtype,
                 Dtype out_dtype, void* out);

// The elements of the flattened parameter that are one of its tensors as they are; absent where
// they are not.
std::optional<Range> elements_of_part(const ParamMapping& mapping, std::size_t part);

// What an export writes, in the model's order: tensors[i] is part `part` of params()[param].
struct ExportTensor {
  TensorSpec spec;
  std::size_t param = 0, part = 0;
};
std::vector<ExportTensor> export_tensors(const WeightMap& map, Dtype dtype);

}  // namespace bev
