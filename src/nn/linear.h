// Linear layers and norms as modules: small structs that own their parameters by value.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "autograd/tape.h"
#include "ops/norm.h"

namespace bev {

struct Linear {
  Param weight;  // [out, in]
  std::optional<Param> bias;

  void params(std::vector<Param*>& list);
  // Column parallel and whole layers: bias included. Row parallel: without it.
  Var forward(Context& ctx, const Var& x) const;
  // Row parallel: product, reduction over tp, then the bias.
  Var forward_and_leave(Context& ctx, const Var& x, bool sequence_parallel) const;
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

struct Norm {
  Param weight;
  std::optional<Param> bias;
  bool center = false;
  double epsilon = 1e-5;
  double offset = 0;

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
