// Autograd tape: reverse-mode differentiation over coarse ops. An op computes its outputs, then
// records one closure that maps the outputs' gradients to the inputs'. One tape per micro-batch in
// flight.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "autograd/context.h"
#include "autograd/deferred_wgrad.h"
#include "base/spare_memory.h"
#include "tensor/quantized.h"

namespace bev {

struct QuantizeRequest;

using VarId = std::int32_t;

// Recomputes a tensor from tensors that are saved anyway (selective recompute), or materialises a
// lazy one.
class Recipe {
 public:
  virtual ~Recipe() = default;
  virtual Tensor make(Context& ctx) const = 0;
  // Quantises the tensor that make() would return; fused if the recipe supports it.
  virtual Quantized quantize(Context& ctx, QuantizeRequest request) const;
};

// A tensor, or a lazy one: if all consumers read it in FP8, it is never materialised, and its
// recipe writes the quantised forms directly (fused quantisation).
struct Value {
  Tensor tensor;                         // only dtype and shape if there is a source
  std::shared_ptr<const Recipe> source;  // null: the tensor is materialised
  Tensor amax;  // f32 [1]: amax of this rank's part, if its producer computed it

  Value() = default;
  Value(Tensor written) : tensor(std::move(written)) {}  // NOLINT: a tensor is a value
  Value(Tensor written, Tensor largest) : tensor(std::move(written)), amax(std::move(largest)) {}
  Value(Tensor unwritten, std::shared_ptr<const Recipe> maker, Tensor largest)
      : tensor(std::move(unwritten)), source(std::move(maker)), amax(std::move(largest)) {}

  bool empty() const { return tensor.empty() && source == nullptr; }
  Tensor get(Context& ctx) const { return source ? source->make(ctx) : tensor; }
  Quantized quantize(Context& ctx, QuantizeRequest request) const;
  const Shape& shape() const { return tensor.shape(); }
  Dtype dtype() const { return tensor.dtype(); }
};

// A value in the graph. id is -1 if no gradient is wanted.
struct Var : Value {
  Placement placement;
  VarId id = -1;
  std::shared_ptr<const Recipe> recipe;  // recomputes it for the backward; null: it is saved

  bool tracked() const { return id >= 0; }
};

// A tensor saved for the backward: the tensor itself, or a recipe.
class Saved {
 public:
  Saved() = default;
  explicit Saved(const Var& var) : recipe_(var.recipe ? var.recipe : var.source) {
    if (!recipe_) tensor_ = var.tensor;
  }
  explicit Saved(Tensor tensor) : tensor_(std::move(tensor)) {}
  Tensor get(Context& ctx) const { return recipe_ ? recipe_->make(ctx) : tensor_; }
  Value value() const { return {tensor_, recipe_, {}}; }

 private:
  Tensor tensor_;
  std::shared_ptr<const Recipe> recipe_;
};

// The part of a Var that a closure needs to pass on a gradient.
struct GradSlot {
  VarId id = -1;
  Placement placement;  // of the value
  GradSlot() = default;
  explicit GradSlot(const Var& var) : id(var.id), placement(var.placement) {}
  bool wanted() const { return id >= 0; }
};

class Backward;

class Tape {
 public:
  Tape() = default;
  ~Tape() { clear(); }
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  // A value that accumulates gradients: an input of the recorded graph, or an op's output.
  Var track(Tensor tensor, const Placement& placement);

  // backward(Backward&) is called once, after all closures recorded later.
  template <class F>
  void record(const char* op, std::int64_t layer, F backward) {
    static_assert(alignof(F) <= alignof(std::max_align_t));
    void* place = room_for(sizeof(F));
    new (place) F(std::move(backward));
    nodes_.push_back({op, layer, place,
                      [](void* f, Backward& back) { (*static_cast<F*>(f))(back); },
                      [](void* f) { static_cast<F*>(f)->~F(); }});
  }

  // Allocates a recipe from memory that the tape reuses; the recipe may outlive the tape.
  template <class R, class... Args>
  std::shared_ptr<const Recipe> make_recipe(Args&&... args) {
    return std::allocate_shared<R>(SpareAllocator<R>(recipes_), std::forward<Args>(args)...);
  }

  // An empty tape for recomputation inside a backward. There is only one at a time.
  Tape& inner();

  // Runs and destroys all closures in reverse order. Gradients of tracked inputs stay until taken.
  void backward(Context& ctx) {
    while (!backward_to_pause(ctx)) {
    }
  }
  // The same up to a closure that calls pause(); returns true when all have run.
  bool backward_to_pause(Context& ctx);

  // Gradient accumulation for a value; `placement` must be the dual of the value's.
  void add_gradient(Context& ctx, const GradSlot& to, Value gradient, const Placement& placement);
  // Moves out the accumulated gradient; empty if there is none.
  Value take_value(VarId id);
  // The same for a materialised gradient, as graph inputs have; throws if it is lazy.
  Tensor take_gradient(VarId id);

  // Called by a closure: backward_to_pause() returns before the next closure.
  void pause() { paused_ = true; }

  void clear();
  std::size_t size() const { return nodes_.size(); }
  const char* running() const { return running_; }  // op whose backward runs

 private:
  struct Node {
    const char* op;
    std::int64_t layer;
    void* closure;
    void (*call)(void*, Backward&);
    void (*destroy)(void*);
  };
  void* room_for(std::size_t bytes);

  std::vector<Node> nodes_;
  std::vector<Value> gradients_;
  std::vector<const char*> gradient_ops_;  // op whose backward added to each gradient last
  const char* running_ = "";
  bool paused_ = false;
  // Closures are in slabs that are kept for the next use of the tape.
  static constexpr std::size_t kSlabBytes = 64 * 1024;
  std::vector<std::unique_ptr<std::byte[]>> slabs_;
  std::size_t slab_ = 0, slab_used_ = 0;
  std::shared_ptr<SpareMemory> recipes_ = std::make_shared<SpareMemory>();
  std::unique_ptr<Tape> inner_;
};

// Argument of a closure.
class Backward {
 public:
  Backward(Context& context, Tape& tape) : ctx(context), tape_(tape) {}
  Context& ctx;

  Tape& inner_tape() { return tape_.inner(); }
  template <class R, class... Args>
  std::shared_ptr<const Recipe> make_recipe(Args&&... args) {
    return tape_.make_recipe<R>(std::forward<Args>(args)...);
  }
  Tensor take(const GradSlot& output) { return take_value(output).get(ctx); }
  Value take_value(const GradSlot& output) { return tape_.take_value(output.id); }
  void add(const GradSlot& input, Value gradient, const Placement& placement) {
    tape_.add_gradient(ctx, input, std::move(gradient), placement);
  }
  // Adds a gradient with the dual placement of the input (elementwise ops).
  void add(const GradSlot& input, Value gradient) {
    tape_.add_gradient(ctx, input, std::move(gradient), input.placement.dual());
  }
  void pause() { tape_.pause(); }
  // work(Context&) computes weight gradients (wgrad) from what it owns. It runs now, or later if
  // the schedule splits the backward.
  template <class F>
  void deferred_wgrad(F work) {
    if (ctx.deferred_wgrad != nullptr) {
      ctx.deferred_wgrad->add(tape_.running(), ctx.layer, std::move(work));
    } else {
      work(ctx);
    }
  }

 private:
  Tape& tape_;
};

// Allocates a recipe from the recording tape's memory, if there is one.
template <class R, class... Args>
std::shared_ptr<const Recipe> make_recipe(const Context& ctx, Args&&... args) {
  if (ctx.tape == nullptr) return std::make_shared<R>(std::forward<Args>(args)...);
  return ctx.tape->make_recipe<R>(std::forward<Args>(args)...);
}

// Wraps the output of an op: tracked if `wanted` and a tape records. With a probe, checks the
// values.
Var make_output(Context& ctx, const char* op, Tensor tensor, const Placement& placement,
                bool wanted);

}  // namespace bev
