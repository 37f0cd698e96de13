// MLP of a layer: up projection (gate and up for GLU variants), activation, down projection.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "nn/linear.h"
#include "ops/elementwise.h"

namespace bev {

struct MlpOptions {
  std::int64_t hidden_size = 0, ffn_size = 0;
  ActivationSpec activation = {};
  double gate_multiplier = 1;  // gated: of the gate before the activation
  double out_multiplier = 1;
  bool bias = false;
  double init_std = 0.02, down_init_std = 0.02;
  TensorParallel tensor_parallel = {};
};

struct Mlp {
  Mlp(const std::string& name, const MlpOptions& options);

  MlpOptions options;
  Linear fc1, fc2;  // fc1 rows are gate | up when gated
  // Coefficients of Activation::kXielu.
  struct Xielu {
    Param alpha_p, alpha_n, beta, eps;
  };
  std::optional<Xielu> xielu;

  void params(std::vector<Param*>& list);
  void linears(std::vector<Linear*>& list);
  // [T, H] -> [T, H], both outside of the tensor-parallel region; `tokens` is the total number of
  // rows.
  Var forward(Context& ctx, const Var& x, std::int64_t tokens) const;
};

}  // namespace bev
