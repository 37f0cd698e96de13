#include "autograd/param.h"

#include "base/error.h"

namespace bev {

Nf4Lease Weights::nf4(const Param& param) {
  BEV_FAIL(ErrorKind::kInternal, "weight ", param.name, ": is not kept in NF4 here");
}

Placement gradient_placement(const Param& param, const Placement& x) {
  Placement grad;
  for (int i = 0; i < kAxisCount; ++i) {
    auto axis = static_cast<Axis>(i);
    if (param.split.of_experts() && axis == Axis::kEp) {
      grad = grad.with(axis, PlaceState::kShard0);
    } else if (param.split.dim >= 0 && param.split.axis == axis) {
      grad = grad.with(axis, param.split.dim == 0 ? PlaceState::kShard0 : PlaceState::kShard1);
    } else if (x[axis] != PlaceState::kReplicated) {
      grad = grad.with(axis, PlaceState::kPartial);
    }
  }
  return grad;
}

}  // namespace bev
