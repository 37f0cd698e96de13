// Product with the sigmoid of a gate.
#pragma once

#include "autograd/tape.h"

namespace bev {

// x and gate of one shape and placement -> x sigmoid(gate).
Var sigmoid_gate(Context& ctx, const Var& x, const Var& gate);

}  // namespace bev
