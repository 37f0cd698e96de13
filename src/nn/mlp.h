// The MLP of a layer: up (or gate and up), activation, down.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "nn/linear.h"
#include "ops/elementwise.h"

namespace bev {

struct MlpOptions {
  std::int64_t hidden_size = 0, ffn_size = 0;
  ActivationSpec activation;
  bool bias = false;
  double init_std = 0.02, down_init_std = 0.02;
  bool sequence_parallel = false;
};

struct Mlp {
  Mlp(const std::string& name, const MlpOptions& options);

  MlpOptions options;
  Linear fc1, fc2;  // fc1 rows are gate | up when gated

  void params(std::vector<Param*>& list);
  // x [T, H] copied over tp -> [T, H] outside of the tensor-parallel region.
  Var forward(Context& ctx, const Var& x) const;
};

}  // namespace bev
