#include "parallel/store/amax_history.h"

#include "base/error.h"
#include "kernels/quantize.h"

namespace bev {

std::string amax_history_name(const std::string& param) { return "fp8.amax_history/" + param; }
std::string amax_used_name(const std::string& param) { return "fp8.amax/" + param; }

AmaxHistory::AmaxHistory(const std::vector<Param*>& params, const StoreTools& tools)
    : tools_(tools) {
  std::int64_t steps = tools.options.amax.history_len, count = 0;
  for (const Param* param : params) {
    bool delayed = param->fp8.scaling == Fp8Scaling::kDelayed;
    places_.push_back(delayed ? count : -1);
    count += delayed ? kFp8Roles : 0;
  }
  if (count == 0) return;
  auto zeros = [&](const Shape& shape) {
    Tensor tensor(tools.arena, Dtype::kF32, shape, "step");
    tools.kernels.fill(tools.stream, tensor, 0);
    return tensor;
  };
  seen_ = zeros({count});
  used_ = zeros({count});
  history_ = zeros({count, steps});
  names_.reserve(2 * static_cast<std::size_t>(count / kFp8Roles));
  auto add_part = [&](std::string name, const Shape& shape, const View& memory) {
    Param& part = names_.emplace_back();
    part.name = std::move(name);
    part.shape = part.local = shape;
    parts_.push_back({&part, memory.flat()});
  };
  for (const Param* param : params) {
    std::int64_t at = places_[static_cast<std::size_t>(param->index)];
    if (at < 0) continue;
    add_part(amax_history_name(param->name), {kFp8Roles, steps},
             history_.view().rows(at, at + kFp8Roles));
    add_part(amax_used_name(param->name), {kFp8Roles}, used_.view().rows(at, at + kFp8Roles));
  }
}

AmaxSlot AmaxHistory::slot(const Param& param, Fp8Role role) const {
  std::int64_t at = places_[static_cast<std::size_t>(param.index)];
  BEV_CHECK(at >= 0, ErrorKind::kInternal, param.name, ": has no delayed scales");
  at += static_cast<std::int64_t>(role);
  return {used_.as<float>() + at, seen_.as<float>() + at};
}

void AmaxHistory::begin_step() {
  if (!seen_.empty()) tools_.kernels.fill(tools_.stream, seen_, 0);
}

void AmaxHistory::finish_step(const StepState* state) {
  if (seen_.empty()) return;
  tools_.mesh.tp().all_reduce(seen_, Reduction::kMax, "largest numbers").wait();
  tools_.mesh.grads().all_reduce(seen_, Reduction::kMax, "largest numbers").wait();
  const AmaxOptions& options = tools_.options.amax;
  tools_.kernels.quantize.update_amax(tools_.stream, {.seen = seen_,
                                                      .history = history_,
                                                      .used = used_,
                                                      .state = state,
                                                      .largest = options.largest,
                                                      .interval = options.interval});
}

}  // namespace bev
