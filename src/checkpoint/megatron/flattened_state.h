// Optimizer state of Megatron Core before 0.14: a parameter [X, Y] of which a rank holds [x, y] has
// moments [X / x, Y / y, x * y], whose last dim is the flattened local part.
#pragma once

#include <string>

#include "checkpoint/megatron/foreign_tensor.h"

namespace bev {

// The tensors with such state in the shape of its parameter. Throws Error(kInput) that begins with
// `where` if sizes do not fit.
ForeignTensors unflattened(ForeignTensors tensors, const std::string& where);

}  // namespace bev
