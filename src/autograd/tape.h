// Reverse-mode differentiation over coarse ops. An op computes its outputs, then records one
// closure that turns the outputs' gradients into the inputs'. One tape per micro-batch in flight.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "autograd/context.h"
#include "autograd/weight_work.h"
#include "base/spare_memory.h"
#include "tensor/quantized.h"

namespace bev {

struct QuantizeRequest;

using VarId = std::int32_t;

// Makes a tensor again from what is kept anyway, instead of keeping it (selective recompute).
class Recipe {
 public:
  virtual ~Recipe() = default;
  virtual Tensor make(Context& ctx) const = 0;
  // What the request says, of the tensor that it would make.
  virtual Quantized quantize(Context& ctx, QuantizeRequest request) const;
};

// Numbers in memory or, where all who read them round them to 8 bits, how to make them on the way.
struct Value {
  Tensor tensor;                         // unwritten where there is a source
  std::shared_ptr<const Recipe> source;  // null: the tensor is there
  Tensor amax;  // f32 [1]: the largest |x| of this rank's part, where its producer found it

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

// A value in the graph. id is -1 when no gradient is wanted.
struct Var : Value {
  Placement placement;
  VarId id = -1;
  std::shared_ptr<const Recipe> recipe;  // how to make it again; null: it is kept

  bool tracked() const { return id >= 0; }
};

// A tensor kept for the backward, by whatever means: the tensor itself, or a recipe.
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

// The part of a Var that a closure needs to pass a gradient on.
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

  // A value that gradients are collected for: an input of the recorded graph, or an op's output.
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

  // A recipe in memory that the tape uses again; it may outlive the tape.
  template <class R, class... Args>
  std::shared_ptr<const Recipe> make_recipe(Args&&... args) {
    return std::allocate_shared<R>(SpareAllocator<R>(recipes_), std::forward<Args>(args)...);
  }

  // An empty tape for what is run again inside a backward. There is one at a time.
  Tape& inner();

  // Runs and destroys all closures, last first. Gradients of tracked inputs stay to be taken.
  void backward(Context& ctx) {
    while (!backward_to_pause(ctx)) {
    }
  }
  // The same up to a closure that pauses: true when all are done.
  bool backward_to_pause(Context& ctx);

  // Adds to the gradient of a value; `placement` must be the dual of the value's.
  void add_gradient(Context& ctx, const GradSlot& to, Value gradient, const Placement& placement);
  // The gradient collected so far, handed over; empty when none came.
  Value take_value(VarId id);
  // The same of one that was written, as those of graph inputs are.
  Tensor take_gradient(VarId id);

  // Said by a closure: who runs the backward step by step is asked before the next one.
  void pause() { paused_ = true; }

  void clear();
  std::size_t size() const { return nodes_.size(); }
  const char* running() const { return running_; }  // the op whose backward runs

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
  const char* running_ = "";
  bool paused_ = false;
  // Closures live in slabs that are kept for the next use of the tape.
  static constexpr std::size_t kSlabBytes = 64 * 1024;
  std::vector<std::unique_ptr<std::byte[]>> slabs_;
  std::size_t slab_ = 0, slab_used_ = 0;
  std::shared_ptr<SpareMemory> recipes_ = std::make_shared<SpareMemory>();
  std::unique_ptr<Tape> inner_;
};

// What a closure sees.
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
  // The gradient has the placement that the input's dual demands (elementwise ops).
  void add(const GradSlot& input, Value gradient) {
    tape_.add_gradient(ctx, input, std::move(gradient), input.placement.dual());
  }
  void pause() { tape_.pause(); }
  // work(Context&) computes weight gradients from what it owns. It runs now, or when a schedule
  // that splits the backward gets to it.
  template <class F>
  void weight_work(F work) {
    if (ctx.weight_work != nullptr) {
      ctx.weight_work->add(tape_.running(), ctx.layer, std::move(work));
    } else {
      work(ctx);
    }
  }

 private:
  Tape& tape_;
};

// In memory of the tape that records, if one does.
template <class R, class... Args>
std::shared_ptr<const Recipe> make_recipe(const Context& ctx, Args&&... args) {
  if (ctx.tape == nullptr) return std::make_shared<R>(std::forward<Args>(args)...);
  return ctx.tape->make_recipe<R>(std::forward<Args>(args)...);
}

// Starts the output of an op: tracked when `wanted` and a tape records. Checks the value when asked
// to.
Var make_output(Context& ctx, const char* op, Tensor tensor, const Placement& placement,
                bool wanted);

}  // namespace bev
