#include "nn/adapter.h"

#include <cmath>

namespace bev {

namespace {

constexpr std::string_view kAName = ".lora_a.weight", kBName = ".lora_b.weight";

// The name of the linear layer that the weight belongs to.
std::string_view layer_name(const Param& weight) {
  return std::string_view(weight.name).substr(0, weight.name.rfind('.'));
}

}  // namespace

LowRank make_low_rank(const Param& weight, const AdapterOptions& options) {
  const int in_dim = weight.shape.ndim() - 1, out_dim = in_dim - 1;
  const auto in = static_cast<double>(weight.shape[in_dim]);
  const Split whole{weight.split.axis, -1, {}};
  LowRank adapter;
  adapter.scale = options.alpha == 0 ? 1 : options.alpha / static_cast<double>(options.rank);
  adapter.a.name = std::string(layer_name(weight)).append(kAName);
  adapter.a.shape = weight.shape;
  adapter.a.shape[out_dim] = options.rank;
  adapter.a.split = weight.split.dim == in_dim ? weight.split : whole;
  // The variance of PyTorch's default for linear layers: uniform in +-1 / sqrt(in).
  adapter.a.init = {InitKind::kNormal, 1 / std::sqrt(3 * in)};
  adapter.b.name = std::string(layer_name(weight)).append(kBName);
  adapter.b.shape = weight.shape;
  adapter.b.shape[in_dim] = options.rank;
  adapter.b.split = weight.split.dim == out_dim ? weight.split : whole;
  adapter.b.init = {InitKind::kConstant, 0};
  return adapter;
}

bool is_adapter(const Param& param) {
  return param.name.ends_with(kAName) || param.name.ends_with(kBName);
}

}  // namespace bev
