#include "autograd/context.h"

#include "autograd/metrics.h"
#include "base/text.h"
#include "kernels/device.h"
#include "kernels/elementwise.h"

namespace bev {

Tensor Context::upload(Dtype of, std::int64_t count, const void* values, const char* tag) const {
  Tensor out(inputs, of, {count}, tag);
  kernels.device.upload(stream, values, out);
  return out;
}

void Context::download(const View& view, void* values) const {
  kernels.device.fetch(stream, view, values).wait();
}

double* Context::metric(std::string_view name, const Placement& placement) const {
  if (metrics == nullptr) return nullptr;
  const MeshCoordinate& at = mesh.at();
  auto counted_by_another = [&](Axis axis, std::int64_t rank) {
    PlaceState state = placement[axis];
    bool whole = state == PlaceState::kReplicated || state == PlaceState::kCopied;
    return whole && rank > 0;
  };
  bool another = counted_by_another(Axis::kTp, at.tp) || counted_by_another(Axis::kCp, at.cp) ||
                 counted_by_another(Axis::kDp, at.dp);
  return another ? nullptr : metrics->find(name);
}

void Context::check(std::string_view op, std::string_view what, const View& view) const {
  if (probe == nullptr || probe->found || !is_float(view.dtype) || view.numel() == 0) return;
  if (probe->sink != nullptr) return probe->sink->see(*this, op, probe->in_backward, view);
  Tensor flag = allocate(Dtype::kI32, {1}, "check");
  kernels.fill(stream, flag, 0);
  kernels.elementwise.find_nonfinite(stream, view, flag.as<std::int32_t>());
  if (download<std::int32_t>(flag).front() == 0) return;
  std::string where = layer >= 0 ? concat("layer ", layer, ", ") : std::string();
  probe->found = true;
  probe->found_in_backward = probe->in_backward;
  probe->found_stage = probe->stage;
  probe->message = concat(where, "op ", op, ": ", what, " ", view.shape, " holds NaN or Inf");
}

}  // namespace bev
