// xIELU (arXiv 2411.13010), an activation with two learned coefficients.
#pragma once

#include "autograd/tape.h"

namespace bev {

// Each [1] and replicated. beta and eps do not train.
struct XieluParams {
  const Param *alpha_p = nullptr, *alpha_n = nullptr, *beta = nullptr, *eps = nullptr;
};
Var xielu(Context& ctx, const Var& x, const XieluParams& params);

}  // namespace bev
