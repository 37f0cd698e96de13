// A parameter, and the two calls through which ops access its memory. Closures capture the Param,
// never its memory: ZeRO sharding, FP8 caches and offload are hidden behind `use` and `sink`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/placement.h"
#include "tensor/nf4.h"
#include "tensor/quantized.h"
#include "tensor/tensor.h"

namespace bev {

struct GemmArgs;
struct PackedOperand;

// How a parameter's value and gradient are stored. Quantised formats join here.
enum class ParamFormat : std::uint8_t {
  kModel,  // in the model's dtype; gradients in the gradient dtype
  kF32,    // at least f32, also in models of 16 bits
  kNf4,    // quantised as Param::nf4 says; frozen parameters only
};
// The dtype of such memory, where that of kModel has `dtype`. What is quantised counts in bytes.
constexpr Dtype stored_dtype(ParamFormat format, Dtype dtype) {
  if (format == ParamFormat::kNf4) return Dtype::kU8;
  return format == ParamFormat::kF32 ? wide_of(dtype) : dtype;
}

// What QK-clip multiplies rows of a weight by, with eta = min(1, threshold / largest logit).
enum class LogitPower : std::uint8_t {
  kQuery,  // eta^alpha
  kKey,    // eta^(1 - alpha)
  kWhole,  // eta: dims of queries whose keys have no weight of the head
};
// Rows [begin + g * stride, begin + g * stride + count) of a weight scale the logits of group g.
struct LogitRows {
  std::int64_t begin = 0, count = 0, stride = 0;
  LogitPower power = LogitPower::kQuery;
};
// The rows of a weight from which queries or keys of attention come.
struct LogitScaling {
  std::int64_t layer = -1;
  std::int64_t groups = 0, group_heads = 0;  // groups of query heads that share a key head
  std::vector<LogitRows> rows = {};          // empty: the weight is none
};

enum class InitKind : std::uint8_t {
  kNormal,
  kUniform,
  kConstant,
  kLogUniform,    // log of a uniform number in (low, value): A_log
  kSoftplusUnder  // softplus of it is log-uniform in (low, value): dt_bias
};

struct InitRule {
  InitKind kind = InitKind::kNormal;
  double value = 0;  // standard deviation, largest absolute value, or the constant
  double low = 0;
};

// Owned by value by its module; its address is stable once the model is built.
struct Param {
  std::string name;  // global: the same in every layout
  std::string unit;  // FSDP unit: parameters gathered and freed together; "": the name's module
  Shape shape;       // global
  Split split;
  InitRule init;
  // False: the parameter is frozen. It has no gradient, no optimizer state and no wgrad GEMM, and
  // the backward ends where neither it nor anything before it trains.
  bool trains = true;
  // Factors on learning rate, weight decay and Adam's epsilon, and the index of its learning rate
  // in the step's.
  double lr_mult = 1, wd_mult = 1, eps_mult = 1;
  int lr_index = 0;
  ParamFormat format = ParamFormat::kModel;
  bool linear = false;  // weight of a linear layer, which may be quantised while it is frozen
  Nf4Format nf4;
  // Held by several stages (the embedding weight, if tied or used by MTP); their gradients are
  // summed.
  bool shared = false;
  bool copy = false;  // replica of a shared parameter, excluded from counts and norms
  int uses = 1;       // gradient accumulations per micro-batch
  // If not 0, each update moves the value by this much against the sign of its gradient
  // (expert bias of aux-loss-free balancing: its gradient is the expert's load above the mean).
  double sign_rate = 0;
  bool counted = true;  // false: excluded from the norms of gradients and parameters
  bool table = false;   // embedding or output layer: no hidden matrix to optimizers and MuP
  bool fused = false;   // each segment of the split is a matrix of its own (q | k | v)
  LogitScaling logits;  // of queries and keys
  Fp8Recipe fp8;        // of the GEMMs that use it
  // Takes this parameter's place where adapters apply (in_use()); null: nothing does.
  Param* trained_copy = nullptr;

  // Set by the parameter store.
  int index = -1;
  Shape local;
  Nf4Layout nf4_layout;  // of the local part

  // The dtype of its value or gradient, where those in kModel have `model`.
  Dtype dtype(Dtype model) const {
    return format == ParamFormat::kNf4 ? model : stored_dtype(format, model);
  }
  // Size of the memory of the local part, in numbers of stored_dtype().
  std::int64_t stored_elements() const {
    return format == ParamFormat::kNf4 ? nf4_layout.bytes() : local.numel();
  }
};

// A parameter's value in the form an op needs; valid while the lease lives.
struct WeightLease {
  View view;
  Tensor hold;
};

// A weight in NF4; valid while the lease lives.
struct Nf4Lease {
  Nf4View view;
  Tensor hold;
};

// amax of one tensor in device memory, for delayed scaling.
struct AmaxSlot {
  const float* used = nullptr;  // determines the scale in this step
  float* seen = nullptr;        // amax of this step, used by later ones
};

class Weights {
 public:
  virtual ~Weights() = default;
  virtual WeightLease use(const Param& param) = 0;
  // Cache for the value packed as operand b of such a GEMM; null if it is not cached. `uses`: such
  // GEMMs per micro-batch.
  virtual PackedOperand* packed(const Param& param, const GemmArgs& gemm, std::int64_t uses) = 0;
  // The value quantised by its FP8 recipe, row-wise and, if anything trains, transposed. Matrices
  // of experts are stacked into one.
  virtual Quantized quantized(const Param& param) = 0;
  // amax of a tensor of the layer with this weight; for delayed scaling only.
  virtual AmaxSlot amax(const Param& param, Fp8Role role) = 0;
  // The value of a parameter in ParamFormat::kNf4 as it is stored, for GEMMs that dequantise it.
  virtual Nf4Lease nf4(const Param& param);
};

// Destination of a weight gradient: view = beta * view + gradient, in the gradient dtype.
struct GradSink {
  View view;
  double beta = 0;
  Tensor hold;
  // Accumulator (f64, device) to which the op may add the sum of squares of the finished gradient,
  // setting `squared`; null: it may not.
  double* squares = nullptr;
  bool squared = false;
};

class Gradients {
 public:
  virtual ~Gradients() = default;
  // `placement` is that of the op's result: partial over the axes whose ranks see different tokens.
  // It is the same at every use.
  virtual GradSink sink(const Param& param, const Placement& placement) = 0;
  // The contribution for which `sink` was called has been added.
  virtual void done(const Param& param, GradSink sink) = 0;
};

// Placement of the gradient of `param` in an op whose other operand has placement `x`.
Placement gradient_placement(const Param& param, const Placement& x);

}  // namespace bev
