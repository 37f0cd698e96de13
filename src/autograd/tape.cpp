#include "autograd/tape.h"

#include "autograd/op_scope.h"
#include "autograd/quantize.h"
#include "base/divide.h"
#include "base/error.h"
#include "kernels/elementwise.h"

namespace bev {

namespace {

Quantized quantize_tensor(Context& ctx, const Tensor& x, QuantizeRequest request) {
  request.x = x;
  return quantize({ctx.kernels, ctx.stream, ctx.arena}, request);
}

}  // namespace

Quantized Recipe::quantize(Context& ctx, QuantizeRequest request) const {
  return quantize_tensor(ctx, make(ctx), request);
}

Quantized Value::quantize(Context& ctx, QuantizeRequest request) const {
  return source ? source->quantize(ctx, request) : quantize_tensor(ctx, tensor, request);
}

Var Tape::track(Tensor tensor, const Placement& placement) {
  Var var{std::move(tensor), placement, static_cast<VarId>(gradients_.size()), nullptr};
  gradients_.emplace_back();
  gradient_ops_.push_back("");
  return var;
}

void* Tape::room_for(std::size_t bytes) {
  bytes = round_up(bytes, alignof(std::max_align_t));
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
  // Recomputation runs a backward inside the backward.
  bool outer = ctx.probe != nullptr && std::exchange(ctx.probe->in_backward, true);
  paused_ = false;
  while (!nodes_.empty() && !paused_) {
    Node node = nodes_.back();
    ctx.layer = node.layer;
    running_ = node.op;
    OpScope scope(ctx, node.op, TraceKind::kBackward);
    node.call(node.closure, back);
    // Destroyed at once, which frees saved tensors as the backward proceeds.
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

void Tape::add_gradient(Context& ctx, const GradSlot& to, Value gradient,
                        const Placement& placement) {
  if (!to.wanted()) return;
  BEV_CHECK(placement == to.placement.dual(), ErrorKind::kInternal, "backward of ", running_,
            " (layer ", ctx.layer, "): the gradient ", gradient.shape(), " is {", placement,
            "}, but a value placed {", to.placement, "} has a gradient {", to.placement.dual(),
            "}: a reduction is missing or doubled");
  if (ctx.probe != nullptr) {
    // Outside a running closure, the gradient was received from the next stage.
    bool before = std::exchange(ctx.probe->in_backward, true);
    ctx.check(*running_ != 0 ? running_ : "receive", "gradient", gradient.tensor);
    ctx.probe->in_backward = before;
  }
  gradient_ops_[static_cast<std::size_t>(to.id)] = running_;
  Value& known = gradients_[static_cast<std::size_t>(to.id)];
  if (known.empty()) {
    known = std::move(gradient);
    return;
  }
  BEV_CHECK(known.shape() == gradient.shape(), "backward of ", running_, ": gradients ",
            known.shape(), " and ", gradient.shape(), " of one value");
  Tensor sum = std::exchange(known, Value()).get(ctx);
  Tensor more = std::exchange(gradient, Value()).get(ctx);
  // Memory that is shared with another tensor is never written.
  Tensor out = sum.unique() ? sum : more.unique() ? more : Tensor();
  if (out.empty()) out = ctx.allocate(sum.dtype(), sum.shape(), "gradients");
  ctx.kernels.elementwise.add(ctx.stream, sum, more, out);
  known = std::move(out);
}

Tape& Tape::inner() {
  if (!inner_) inner_ = std::make_unique<Tape>();
  inner_->clear();
  return *inner_;
}

Value Tape::take_value(VarId id) {
  return id < 0 ? Value() : std::exchange(gradients_[static_cast<std::size_t>(id)], Value());
}

Tensor Tape::take_gradient(VarId id) {
  Value value = take_value(id);
  BEV_CHECK(value.source == nullptr, ErrorKind::kInternal, "tape: the gradient of ",
            gradient_ops_[static_cast<std::size_t>(id)],
            " is lazy (quantised on read) but was taken as a plain tensor");
  return std::move(value.tensor);
}

void Tape::clear() {
  while (!nodes_.empty()) {
    nodes_.back().destroy(nodes_.back().closure);
    nodes_.pop_back();
  }
  gradients_.clear();
  gradient_ops_.clear();
  slab_ = slab_used_ = 0;
}

Var make_output(Context& ctx, const char* op, Tensor tensor, const Placement& placement,
                bool wanted) {
  ctx.check(op, "result", tensor);
  if (wanted && ctx.trains != nullptr) *ctx.trains = true;
  if (wanted && ctx.tape != nullptr) return ctx.tape->track(std::move(tensor), placement);
  return Var{std::move(tensor), placement, -1, nullptr};
}

}  // namespace bev
