#include "autograd/tape.h"

#include "autograd/op_scope.h"
#include "base/error.h"

namespace bev {

Var Tape::track(Tensor tensor, const Placement& placement) {
  Var var{std::move(tensor), placement, static_cast<VarId>(gradients_.size()), nullptr};
  gradients_.emplace_back();
  amaxes_.emplace_back();
  return var;
}

void* Tape::room_for(std::size_t bytes) {
  bytes = (bytes + alignof(std::max_align_t) - 1) / alignof(std::max_align_t) *
          alignof(std::max_align_t);
  BEV_CHECK(bytes <= kSlabBytes, ErrorKind::kInternal, "tape: a closure of ", bytes, " bytes");
  if (slab_ < slabs_.size() && slab_used_ + bytes > kSlabBytes) {
    ++slab_;
    slab_used_ = 0;
  }
  if (slab_ == slabs_.size()) slabs_.push_back(std::make_unique<std::byte[]>(kSlabBytes));
  void* place = slabs_[slab_].get() + slab_used_;
  slab_used_ += bytes;
  return place;
}

bool Tape::backward_to_pause(Context& ctx) {
  Backward back(ctx, *this);
  std::int64_t layer = ctx.layer;
  // Recomputed parts run a backward inside the backward.
  bool outer = ctx.probe != nullptr && std::exchange(ctx.probe->in_backward, true);
  paused_ = false;
  while (!nodes_.empty() && !paused_) {
    Node node = nodes_.back();
    ctx.layer = node.layer;
    running_ = node.op;
    OpScope scope(ctx, node.op, TraceKind::kBackward);
    node.call(node.closure, back);
    // Destroyed at once: saved tensors go as the backward passes.
    node.destroy(node.closure);
    nodes_.pop_back();
  }
  running_ = "";
  if (ctx.probe != nullptr) ctx.probe->in_backward = outer;
  ctx.layer = layer;
  if (!nodes_.empty()) return false;
  slab_ = slab_used_ = 0;
  return true;
}

void Tape::add_gradient(Context& ctx, const GradSlot& to, Tensor gradient,
                        const Placement& placement, Tensor amax) {
  if (!to.wanted()) return;
  BEV_CHECK(placement == to.placement.dual(), ErrorKind::kInternal, "backward of ", running_,
            " (layer ", ctx.layer, "): the gradient ", gradient.shape(), " is {", placement,
            "}, but a value placed {", to.placement, "} has a gradient {", to.placement.dual(),
            "}: a reduction is missing or doubled");
  if (ctx.probe != nullptr) {
    // Outside of a running closure it comes from the stage after this one.
    bool before = std::exchange(ctx.probe->in_backward, true);
    ctx.check(*running_ != 0 ? running_ : "receive", "gradient", gradient);
    ctx.probe->in_backward = before;
  }
  Tensor& sum = gradients_[static_cast<std::size_t>(to.id)];
  amaxes_[static_cast<std::size_t>(to.id)] = sum.empty() ? std::move(amax) : Tensor();
  if (sum.empty()) {
    sum = std::move(gradient);
    return;
  }
  BEV_CHECK(sum.shape() == gradient.shape(), "backward of ", running_, ": gradients ", sum.shape(),
            " and ", gradient.shape(), " of one value");
  // Memory that another holder shares is never written.
  Tensor out = sum.unique() ? sum : gradient.unique() ? gradient : Tensor();
  if (out.empty()) out = ctx.allocate(sum.dtype(), sum.shape(), "gradients");
  ctx.kernels.elementwise.add(ctx.stream, sum, gradient, out);
  sum = std::move(out);
}

Tape& Tape::inner() {
  if (!inner_) inner_ = std::make_unique<Tape>();
  inner_->clear();
  return *inner_;
}

Tensor Tape::take_gradient(VarId id) {
  return id < 0 ? Tensor() : std::exchange(gradients_[static_cast<std::size_t>(id)], Tensor());
}

Tensor Tape::take_amax(VarId id) {
  return id < 0 ? Tensor() : std::exchange(amaxes_[static_cast<std::size_t>(id)], Tensor());
}

void Tape::clear() {
  while (!nodes_.empty()) {
    nodes_.back().destroy(nodes_.back().closure);
    nodes_.pop_back();
  }
  gradients_.clear();
  amaxes_.clear();
  slab_ = slab_used_ = 0;
}

Var make_output(Context& ctx, const char* op, Tensor tensor, const Placement& placement,
                bool wanted) {
  ctx.check(op, "result", tensor);
  if (wanted && ctx.tape != nullptr) return ctx.tape->track(std::move(tensor), placement);
  return Var{std::move(tensor), placement, -1, nullptr};
}

}  // namespace bev
