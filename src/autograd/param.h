// A parameter, and the two calls through which ops reach its memory. A closure captures the Param,
// never its memory: sharded weights, low-precision caches and offload all hide behind `use` and
// `sink`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/placement.h"
#include "tensor/quantized.h"
#include "tensor/tensor.h"

namespace bev {

struct GemmArgs;
struct PackedFactor;

enum class InitKind : std::uint8_t { kNormal, kConstant };

struct InitRule {
  InitKind kind = InitKind::kNormal;
  double value = 0;  // standard deviation, or the constant
};

// Owned by value by the module that uses it; its address is stable once the model is built.
struct Param {
  std::string name;  // global: the same in every layout
  std::string unit;  // of FSDP: gathered and freed with the others of it; "": the name's module
  Shape shape;       // global
  Split split;
  InitRule init;
  bool trains = true;
  bool decays = true;  // weight decay applies
  bool wide = false;   // f32 in models of 16 bits too: its value and its gradient
  // Several stages hold it (the table of a tied embedding, or of one that predicts later tokens):
  // their gradients are summed.
  bool shared = false;
  bool copy = false;  // the holder of a shared parameter that does not count it
  int uses = 1;       // additions to its gradient per micro-batch
  // Not 0: each update moves it by as much against the sign of its gradient, which is no part of
  // the norm (an expert's bias, whose gradient is the expert's load above the mean).
  double sign_rate = 0;
  Fp8Recipe fp8;  // of the products that it is a factor of

  // Set by the store that materialises it.
  int index = -1;
  Shape local;

  // Of its value or gradient, where those of the others have `dtype`.
  Dtype dtype(Dtype others) const { return wide ? wide_of(others) : others; }
};

// A parameter's value in the form an op needs, valid while the lease lives.
struct WeightLease {
  View view;
  Tensor hold;
};

// Largest numbers of one tensor, in device memory, for delayed scaling.
struct AmaxSlot {
  const float* used = nullptr;  // what its scale follows from in this step
  float* seen = nullptr;        // of this step, which later ones will use
};

class Weights {
 public:
  virtual ~Weights() = default;
  virtual WeightLease use(const Param& param) = 0;
  // Where the device's form of the value, as factor b of such a product, is kept for the products
  // to come; null where it is not. `uses`: such products in a micro-batch.
  virtual PackedFactor* packed(const Param& param, const GemmArgs& product, std::int64_t uses) = 0;
  // The value in the 8-bit form of its recipe, by rows and, unless nothing trains, by columns.
  // Matrices of experts are taken as one, above each other.
  virtual Quantized quantized(const Param& param) = 0;
  // Of a tensor of the layer whose weight this is. For delayed scaling only.
  virtual AmaxSlot amax(const Param& param, Fp8Role role) = 0;
};

// Where a weight gradient goes: view = beta * view + gradient, in the gradient dtype.
struct GradSink {
  View view;
  double beta = 0;
  Tensor hold;
  // Where the op may add the squares of the view when it has made it, and say so (f64, on the
  // device); null: it may not.
  double* squares = nullptr;
  bool squared = false;
};

class Gradients {
 public:
  virtual ~Gradients() = default;
  // `placement` is what the op computes: partial over the axes whose ranks see different tokens. It
  // is the same at every use.
  virtual GradSink sink(const Param& param, const Placement& placement) = 0;
  // The use that `sink` was for has been added.
  virtual void done(const Param& param, GradSink sink) = 0;
};

// The placement of the gradient of `param` in an op whose other operand has placement `x`.
Placement gradient_placement(const Param& param, const Placement& x);

}  // namespace bev
