// Linear layers (column parallel, row parallel, replicated) and norms as modules: small structs
// that own their parameters by value.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "autograd/tape.h"
#include "nn/adapter.h"
#include "ops/norm.h"

namespace bev {

// Options of tensor-parallel layers.
struct TensorParallel {
  bool sequence_parallel = false;  // outside of a region each rank holds a part of the tokens
  bool overlap = false;  // overlaps the all-gather or reduce-scatter with the GEMM, in blocks
};

struct Linear {
  Param weight;  // [out, in]
  std::optional<Param> bias;
  std::vector<LowRank> adapters;  // of rows that do not overlap

  void params(std::vector<Param*>& list);
  // Replicated layer: x and the output are outside of a tensor-parallel region.
  Var forward(Context& ctx, const Var& x) const;
  // Column parallel: enters the tensor-parallel region; `tokens` is the total number of rows.
  Var enter(Context& ctx, const Var& x, std::int64_t tokens, const TensorParallel& tp) const;
  // Row parallel: leaves the tensor-parallel region; adds the bias.
  Var leave(Context& ctx, const Var& x, const TensorParallel& tp) const;
};

struct LinearSpec {
  std::string name;  // of the layer; ".weight" and ".bias" are appended
  std::int64_t out = 0, in = 0;
  bool bias = false;
  double std = 0.02;
};
// Output dim split over tp, each segment separately (empty: one segment).
Linear column_linear(const LinearSpec& spec, std::vector<std::int64_t> segments);
// Input dim split over tp.
Linear row_linear(const LinearSpec& spec);
// Replicated over tp.
Linear whole_linear(const LinearSpec& spec);

struct Norm {
  Param weight;
  std::optional<Param> bias;
  bool center = false;
  double epsilon = 1e-5;
  double offset = 0;
  bool amax = false, unwritten = false;  // of NormSpec

  void params(std::vector<Param*>& list);
  NormSpec spec(bool regenerate) const;
};

struct NormOptions {
  bool center = false;  // LayerNorm; otherwise RMSNorm
  double epsilon = 1e-5;
  bool plus_one = false;  // the stored weight is weight - 1
  bool bias = true;       // of a LayerNorm
};
Norm make_norm(const std::string& name, std::int64_t size, const NormOptions& options);

}  // namespace bev
