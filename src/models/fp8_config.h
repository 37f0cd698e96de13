// FP8 training (and emulated FP4): which layers use it and with which recipe. Names and meanings
// are Megatron's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/config.h"
#include "tensor/quantized.h"

namespace bev {

class FieldList;

enum class Fp8FormatChoice : std::uint8_t { kNone, kE4m3, kHybrid };
enum class Fp4FormatChoice : std::uint8_t { kNone, kE2m1 };
enum class AmaxChoice : std::uint8_t { kMostRecent, kMax };

struct Fp8Config {
  Fp8FormatChoice fp8_format = Fp8FormatChoice::kNone;
  Fp8Scaling fp8_recipe = Fp8Scaling::kDelayed;
  std::int64_t fp8_margin = 0;
  std::int64_t fp8_interval = 1;
  std::int64_t fp8_amax_history_len = 1;
  AmaxChoice fp8_amax_compute_algo = AmaxChoice::kMostRecent;
  bool fp8_wgrad = true;
  bool fp8_param_gather = false;
  bool first_last_layers_bf16 = false;
  std::int64_t num_layers_at_start_in_bf16 = 1;
  std::int64_t num_layers_at_end_in_bf16 = 1;

  Fp4FormatChoice fp4_format = Fp4FormatChoice::kNone;
  Fp8Scaling fp4_recipe = Fp8Scaling::kNvfp4;

  void fields(FieldList& list);
  bool used() const { return fp8_format != Fp8FormatChoice::kNone || emulates_fp4(); }
  bool emulates_fp4() const { return fp4_format != Fp4FormatChoice::kNone; }
  Fp8Scaling scaling() const { return emulates_fp4() ? fp4_recipe : fp8_recipe; }
  // Recipe of the linear layers of one transformer layer.
  Fp8Recipe recipe(std::int64_t layer, std::int64_t layers) const;
  // Inconsistencies within the options, or with the model in its dtype split over tp ranks and its
  // experts over etp (0: same as tp).
  std::vector<std::string> problems(const ModelConfig& model, Dtype dtype, std::int64_t tp,
                                    std::int64_t etp = 0) const;
};

}  // namespace bev
