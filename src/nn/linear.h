// Linear layers and norms as modules: small structs that own their parameters by value.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "autograd/tape.h"
#include "nn/adapter.h"
#include "ops/norm.h"

namespace bev {

// How layers are cut over tp.
struct TensorParallel {
  bool sequence_parallel = false;  // outside of a region each rank has its part of the tokens
  bool overlap = false;            // exchange tokens block by block beside the products
};

struct Linear {
  Param weight;  // [out, in]
  std::optional<Param> bias;
  std::optional<LowRank> adapter;

  void params(std::vector<Param*>& list);
  void add_adapter(const AdapterOptions& options) { adapter = make_low_rank(weight, options); }
  // Whole on every rank: x and the result outside of a tensor-parallel region.
  Var forward(Context& ctx, const Var& x) const;
  // Column parallel: x from outside of the tensor-parallel region, of `tokens` rows in all.
  Var enter(Context& ctx, const Var& x, std::int64_t tokens, const TensorParallel& tp) const;
  // Row parallel: out of the region, the bias included.
  Var leave(Context& ctx, const Var& x, const TensorParallel& tp) const;
};

struct LinearSpec {
  std::string name;  // of the layer; ".weight" and ".bias" are added
  std::int64_t out = 0, in = 0;
  bool bias = false;
  double std = 0.02;
};
// Rows cut over tp, each segment by itself (empty: one segment).
Linear column_linear(const LinearSpec& spec, std::vector<std::int64_t> segments);
// Columns cut over tp.
Linear row_linear(const LinearSpec& spec);
// Not cut.
Linear whole_linear(const LinearSpec& spec);

struct Norm {
  Param weight;
  std::optional<Param> bias;
  bool center = false;
  double epsilon = 1e-5;
  double offset = 0;
  bool amax = false, unwritten = false;  // as in NormSpec

  void params(std::vector<Param*>& list);
  NormSpec spec(bool regenerate) const;
};

struct NormOptions {
  bool center = false;  // LayerNorm, with a bias
  double epsilon = 1e-5;
  bool plus_one = false;  // stores weight - 1
};
Norm make_norm(const std::string& name, std::int64_t size, const NormOptions& options);

}  // namespace bev
