// Mamba-2 mixers of a model, with Megatron's sizes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "nn/recurrent_norm.h"

namespace bev {

class FieldList;

struct MambaConfig {
  static constexpr const char* kSection = "mamba";  // flag section

  std::int64_t num_heads = 0;  // 0: 2 hidden / head_dim
  std::int64_t head_dim = 64;
  std::int64_t state_dim = 128;
  std::int64_t num_groups = 8;  // B and C are shared by heads / groups
  std::int64_t conv_kernel = 4;
  bool conv_bias = true;
  bool in_bias = false, out_bias = false;  // of the projections
  RecurrentNorm norm = RecurrentNorm::kGroup;
  bool norm_before_gate = false;
  double dt_min = 0, dt_max = 0;  // limits of the step; dt_max 0: none
  // Factors of the input, of z | x | B | C | dt (empty: 1), and of the output; of input and output
  // of attention in parallel with it (layers p).
  double in_multiplier = 1, out_multiplier = 1;
  std::vector<double> part_multipliers;
  double attention_in_multiplier = 1, attention_out_multiplier = 1;

  void fields(FieldList& list);

  std::int64_t heads(std::int64_t hidden_size) const {
    return num_heads > 0 ? num_heads : 2 * hidden_size / head_dim;
  }
  // All inconsistencies, each with the values and the fix.
  std::vector<std::string> problems(std::int64_t hidden_size) const;
};

}  // namespace bev
