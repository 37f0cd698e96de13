#include "ops/parallel_linear.h"

#include <vector>

#include "autograd/op_scope.h"
#include "base/error.h"
#include "ops/copy_columns.h"
#include "ops/linear.h"
#include "ops/linear_gemms.h"

namespace bev {

namespace {

Range block_of(const Group& group, std::int64_t tokens, int member) {
  return shard_range(tokens, group.size(), member);
}

Tensor all_gather_rows(Context& ctx, const Tensor& part, std::int64_t tokens, const char* label,
                       Work& pending) {
  Tensor whole = ctx.allocate(part.dtype(), {tokens, part.shape()[1]}, "gathered tokens");
  pending = ctx.mesh.tp().all_gather(part, whole, label);
  return whole;
}

// All-gathers the rows of all tp ranks. body(all rows, range) is called when a range has arrived:
// block by block, this rank's first, or once for all rows without overlap.
template <class Body>
Tensor gather_blocks(Context& ctx, const Tensor& part, std::int64_t tokens, const char* label,
                     bool overlap, const Body& body) {
  Group& tp = ctx.mesh.tp();
  if (!overlap) {
    Work pending;
    Tensor whole = all_gather_rows(ctx, part, tokens, label, pending);
    pending.wait();
    body(whole, Range{0, tokens});
    return whole;
  }
  Tensor whole = ctx.allocate(part.dtype(), {tokens, part.shape()[1]}, "gathered tokens");
  std::vector<Work> sent, received;
  for (int step = 1; step < tp.size(); ++step) {
    int to = (tp.rank() + step) % tp.size(), from = (tp.rank() - step + tp.size()) % tp.size();
    Range rows = block_of(tp, tokens, from);
    sent.push_back(tp.send(part, to, 0, label));
    received.push_back(tp.receive(whole.view().rows(rows.begin, rows.end), from, 0, label));
  }
  Range own = block_of(tp, tokens, tp.rank());
  copy_columns(ctx, part, 0, whole.rows(own.begin, own.end), 0, part.shape()[1]);
  body(whole, own);
  for (int step = 1; step < tp.size(); ++step) {
    received[static_cast<std::size_t>(step - 1)].wait();
    body(whole, block_of(tp, tokens, (tp.rank() - step + tp.size()) % tp.size()));
  }
  for (Work& work : sent) work.wait();
  return whole;
}

// Reduce-scatter overlapped with the GEMM: gemm(rows, out) computes this rank's partial sum of
// any rows; returns the total of this rank's rows. The block of the next rank is computed first and
// is sent while the others are computed.
template <class Gemm>
Tensor scatter_blocks(Context& ctx, std::int64_t tokens, std::int64_t columns, const char* label,
                      const Gemm& gemm) {
  Group& tp = ctx.mesh.tp();
  std::vector<Tensor> outgoing, incoming(static_cast<std::size_t>(tp.size()));
  std::vector<Work> works;
  Range own = block_of(tp, tokens, tp.rank());
  auto make = [&](std::int64_t rows) {
    return ctx.allocate(ctx.dtype, {rows, columns}, "partial sums");
  };
  for (int step = 1; step < tp.size(); ++step) {
    int to = (tp.rank() + step) % tp.size(), from = (tp.rank() - step + tp.size()) % tp.size();
    Range rows = block_of(tp, tokens, to);
    outgoing.push_back(make(rows.size()));
    gemm(rows, outgoing.back());
    works.push_back(tp.send(outgoing.back(), to, 0, label));
    Tensor& in = incoming[static_cast<std::size_t>(from)];
    in = make(own.size());
    works.push_back(tp.receive(in, from, 0, label));
  }
  Tensor& mine = incoming[static_cast<std::size_t>(tp.rank())];
  mine = make(own.size());
  gemm(own, mine);
  for (Work& work : works) work.wait();
  // Added in rank order in the wide dtype and rounded once, like the reduce-scatter.
  Tensor sum = ctx.allocate(ctx.wide(), {own.size(), columns}, "activations");
  for (std::size_t i = 0; i < incoming.size(); ++i) {
    if (i == 0) {
      ctx.kernels.cast(ctx.stream, incoming[i], sum);
    } else {
      ctx.kernels.elementwise.axpby(ctx.stream, 1, incoming[i], 1, sum);
    }
  }
  if (ctx.wide() == ctx.dtype) return sum;
  ctx.kernels.cast(ctx.stream, sum, mine);
  return mine;
}

void check_input(const Var& x, std::int64_t columns, const Param& weight, bool ok,
                 const char* expected) {
  BEV_CHECK(x.shape().ndim() == 2 && x.shape()[1] == columns, "linear ", weight.name, ": input ",
            x.shape(), " for a weight ", weight.local);
  BEV_CHECK(ok, ErrorKind::kInternal, "linear ", weight.name, ": the input {", x.placement,
            "} must be ", expected, " over tp");
}

// A gradient whose reduction over tp is in flight.
struct PendingGradient {
  Tensor partial, sum;
  Work reducing;  // declared last: destroyed before the tensors it uses
};

// State of the backward of a column-parallel linear.
struct ColumnBackward {
  const Param* weight;
  const Param* bias;
  bool split;  // x is sharded over tokens (sequence parallel)
  Placement weight_placement, bias_placement, result_placement;
  KeptInput x;
  GradSlot in;

  void run(Backward& back, Value dy) const {
    Context& ctx = back.ctx;
    bool bias_trains = bias != nullptr && bias->trains;
    // The bias gradient sums all rows of dy, so dy must be materialised.
    if (bias_trains) dy = Value(dy.get(ctx), dy.amax);
    Tensor part, whole;
    Work gathering;  // reads `part` until waited for
    // Deferred wgrad (zero bubble) gathers x when it runs.
    if (split && weight->trains && ctx.deferred_wgrad == nullptr) {
      part = x.part(ctx, *weight);
      whole = all_gather_rows(ctx, part, dy.shape()[0], "tp input", gathering);
    }
    TensorScale scale = tensor_scale(ctx, *weight, Fp8Role::kGradient, dy, result_placement.dual());
    GemmOperand operand =
        make_operand(ctx, *weight, Fp8Role::kGradient, scale, dy, {in.wanted(), weight->trains});
    PendingGradient dx;
    if (in.wanted()) dx = start_dgrad(ctx, operand, dy);
    gathering.wait();
    part = Tensor();
    if (bias_trains) {
      back.deferred_wgrad([b = bias, p = bias_placement, rows = dy.tensor](Context& wctx) {
        add_bias_gradient(wctx, *b, rows, p);
      });
    }
    if (weight->trains) {
      operand.quantized.rows = operand.quantized.row_scales = Tensor();
      back.deferred_wgrad([*this, operand, tokens = dy.shape()[0], whole](Context& wctx) {
        add_gradient(wctx, operand, tokens, whole);
      });
    }
    if (!in.wanted()) return;
    dx.reducing.wait();
    back.add(in, std::move(dx.sum));
  }

 private:
  PendingGradient start_dgrad(Context& ctx, const GemmOperand& operand, const Value& dy) const {
    Group& tp = ctx.mesh.tp();
    std::int64_t tokens = dy.shape()[0], columns = weight->local[1];
    PendingGradient dx;
    dx.partial = ctx.allocate(dy.dtype(), {tokens, columns}, "gradients");
    dgrad_gemm(ctx, *weight, operand, dx.partial);
    if (split) {
      std::int64_t rows = block_of(tp, tokens, tp.rank()).size();
      dx.sum = ctx.allocate(dy.dtype(), {rows, columns}, "gradients");
      dx.reducing = tp.reduce_scatter(dx.partial, dx.sum, "tp input gradient");
    } else {
      dx.sum = std::move(dx.partial);
      dx.reducing = tp.all_reduce(dx.sum, Reduction::kSum, "tp input gradient");
    }
    return dx;
  }

  // wgrad. `whole` is the gathered x, or empty if it is not gathered yet.
  void add_gradient(Context& ctx, const GemmOperand& dy, std::int64_t tokens, Tensor whole) const {
    // Collective, so it runs even if this rank has all the tokens and the others none.
    if (split && whole.empty()) {
      Tensor part = x.part(ctx, *weight);
      Work gathering;
      whole = all_gather_rows(ctx, part, tokens, "tp input", gathering);
      gathering.wait();
    }
    add_wgrad(ctx, *weight, weight_placement, dy, x.get(ctx, *weight, whole));
  }
};

// Forward of a column-parallel linear under sequence parallelism: all-gathers x by blocks, in FP8
// if the tensor has a single scale, and saves only this rank's part.
KeptInput gather_and_multiply(Context& ctx, const Var& x, std::int64_t tokens, const Param& weight,
                              const Param* bias, bool overlap, const Tensor& y) {
  TensorScale scale = tensor_scale(ctx, weight, Fp8Role::kInput, x, x.placement);
  auto operand_of = [&](const Value& rows) {
    return make_operand(ctx, weight, Fp8Role::kInput, scale, rows, {true, false});
  };
  bool rounded = has_one_scale(weight);
  GemmOperand own = rounded ? operand_of(x) : GemmOperand{x.get(ctx), {}};
  const Tensor& part = rounded ? own.quantized.rows : own.plain;
  gather_blocks(ctx, part, tokens, "tp input", overlap, [&](const Tensor& whole, Range rows) {
    Tensor here = whole.rows(rows.begin, rows.end);
    forward_gemm(ctx, weight, bias, rounded ? with_rows(own, here) : operand_of(here),
                 y.view().rows(rows.begin, rows.end));
  });
  if (ctx.tape == nullptr || !weight.trains) return {};
  if (KeptInput::in_rows(weight)) return {x, std::move(scale), own.quantized};
  return {x, std::move(scale)};
}

}  // namespace

Var column_parallel(Context& ctx, const Var& x, std::int64_t tokens, const Param& weight,
                    const Param* bias, bool overlap) {
  OpScope scope(ctx, "column_parallel");
  PlaceState state = x.placement[Axis::kTp];
  bool split = state == PlaceState::kShard0 && ctx.mesh.tp().size() > 1;
  check_input(x, weight.local[1], weight,
              state == PlaceState::kReplicated || state == PlaceState::kShard0,
              "whole or shard(0)");
  Tensor y = ctx.allocate(ctx.dtype, {tokens, weight.local[0]}, "activations");
  KeptInput kept = split ? gather_and_multiply(ctx, x, tokens, weight, bias, overlap, y)
                         : forward_and_keep(ctx, x, weight, bias, y);
  bool trains = weight.trains || (bias && bias->trains);
  Placement placement = x.placement.with(Axis::kTp, PlaceState::kShard1);
  Var out = make_output(ctx, "column_parallel", std::move(y), placement, x.tracked() || trains);
  if (!out.tracked()) return out;
  ColumnBackward backward{&weight,
                          bias,
                          split,
                          gradient_placement(weight, x.placement),
                          bias ? gradient_placement(*bias, x.placement) : Placement(),
                          placement,
                          std::move(kept),
                          GradSlot(x)};
  ctx.tape->record("column_parallel", ctx.layer,
                   [backward, result = GradSlot(out)](Backward& back) {
                     Value dy = back.take_value(result);
                     if (!dy.empty()) backward.run(back, std::move(dy));
                   });
  return out;
}

namespace {

// Forward of a row-parallel linear that overlaps the reduce-scatter of the result with the GEMM.
Tensor multiply_and_scatter(Context& ctx, const Var& x, const Param& weight, KeptInput& kept) {
  TensorScale scale = tensor_scale(ctx, weight, Fp8Role::kInput, x, x.placement);
  auto operand_of = [&](const Value& rows, const OperandUse& use) {
    return make_operand(ctx, weight, Fp8Role::kInput, scale, rows, use);
  };
  bool keeps = ctx.tape != nullptr && weight.trains;
  bool transposes = keeps && KeptInput::transposed(weight, x), rounded = has_one_scale(weight);
  GemmOperand all = rounded ? operand_of(x, {true, transposes}) : GemmOperand{x.get(ctx), {}};
  Tensor y = scatter_blocks(
      ctx, x.shape()[0], weight.local[0], "tp output", [&](Range rows, const Tensor& out) {
        const Tensor& from = rounded ? all.quantized.rows : all.plain;
        Tensor here = from.rows(rows.begin, rows.end);
        forward_gemm(ctx, weight, nullptr,
                     rounded ? with_rows(all, here) : operand_of(here, {true, false}), out);
      });
  if (transposes && !rounded) all = operand_of(all.plain, {false, true});
  if (keeps) kept = transposes ? KeptInput(all.quantized) : KeptInput(x, std::move(scale));
  return y;
}

// State of the backward of a row-parallel linear.
struct RowBackward {
  const Param* weight;
  bool split, overlap;  // split: dy is sharded over tokens
  Placement weight_placement, result_placement;
  KeptInput x;
  GradSlot in;

  void run(Backward& back, const Value& dy, std::int64_t tokens) const {
    Context& ctx = back.ctx;
    Tensor dx;
    if (in.wanted()) dx = ctx.allocate(dy.dtype(), {tokens, weight->local[1]}, "gradients");
    TensorScale scale = tensor_scale(ctx, *weight, Fp8Role::kGradient, dy, result_placement.dual());
    GemmOperand operand = split ? gather_gemms(ctx, dy, tokens, scale, dx)
                                : gemms(ctx, scale, dy, dx, weight->trains);
    if (weight->trains) {
      operand.quantized.rows = operand.quantized.row_scales = Tensor();
      back.deferred_wgrad([w = weight, p = weight_placement, kept = x, operand](Context& wctx) {
        add_wgrad(wctx, *w, p, operand, kept.get(wctx, *w));
      });
    }
    if (in.wanted()) back.add(in, std::move(dx));
  }

 private:
  // dgrad of some rows; an empty dx is not wanted. Returns the operand for wgrad if `keep`.
  GemmOperand gemms(Context& ctx, const TensorScale& scale, const Value& dy, const Tensor& dx,
                    bool keep) const {
    GemmOperand operand =
        make_operand(ctx, *weight, Fp8Role::kGradient, scale, dy, {!dx.empty(), keep});
    if (!dx.empty()) dgrad_gemm(ctx, *weight, operand, dx);
    return operand;
  }

  // All-gathers dy and computes dgrad of all rows; returns the operand for wgrad.
  GemmOperand gather_gemms(Context& ctx, const Value& dy, std::int64_t tokens,
                           const TensorScale& scale, const Tensor& dx) const {
    if (KeptInput::in_rows(*weight)) return gather_rounded(ctx, dy, tokens, scale, dx);
    bool at_once = !overlap && weight->trains;
    GemmOperand operand;
    Tensor whole =
        gather_blocks(ctx, dy.get(ctx), tokens, "tp output gradient", overlap,
                      [&](const Tensor& all, Range rows) {
                        Tensor to = dx.empty() ? dx : dx.rows(rows.begin, rows.end);
                        operand = gemms(ctx, scale, all.rows(rows.begin, rows.end), to, at_once);
                      });
    if (at_once || !weight->trains) return operand;
    return make_operand(ctx, *weight, Fp8Role::kGradient, scale, whole, {false, true});
  }

  // With a single scale per tensor, rows are all-gathered in FP8.
  GemmOperand gather_rounded(Context& ctx, const Value& dy, std::int64_t tokens,
                             const TensorScale& scale, const Tensor& dx) const {
    GemmOperand own = make_operand(ctx, *weight, Fp8Role::kGradient, scale, dy, {true, false});
    Tensor whole =
        gather_blocks(ctx, own.quantized.rows, tokens, "tp output gradient", overlap,
                      [&](const Tensor& all, Range rows) {
                        if (dx.empty()) return;
                        dgrad_gemm(ctx, *weight, with_rows(own, all.rows(rows.begin, rows.end)),
                                   dx.view().rows(rows.begin, rows.end));
                      });
    return weight->trains ? with_transpose(ctx, own, whole) : GemmOperand();
  }
};

}  // namespace

Var row_parallel(Context& ctx, const Var& x, const Param& weight, bool sequence_parallel,
                 bool overlap) {
  OpScope scope(ctx, "row_parallel");
  check_input(x, weight.local[1], weight, x.placement[Axis::kTp] == PlaceState::kShard1,
              "shard(1)");
  Group& tp = ctx.mesh.tp();
  std::int64_t tokens = x.shape()[0], columns = weight.local[0];
  bool split = sequence_parallel && tp.size() > 1;
  Tensor y;
  KeptInput kept;
  if (split && overlap) {
    y = multiply_and_scatter(ctx, x, weight, kept);
  } else {
    y = ctx.allocate(ctx.dtype, {tokens, columns}, "activations");
    kept = forward_and_keep(ctx, x, weight, nullptr, y);
  }
  if (split && !overlap) {
    Tensor partial = std::move(y);
    y = ctx.allocate(ctx.dtype, {block_of(tp, tokens, tp.rank()).size(), columns}, "activations");
    tp.reduce_scatter(partial, y, "tp output").wait();
  } else if (!split) {
    tp.all_reduce(y, Reduction::kSum, "tp output").wait();
  }
  PlaceState state = sequence_parallel ? PlaceState::kShard0 : PlaceState::kReplicated;
  Var out = make_output(ctx, "row_parallel", std::move(y), x.placement.with(Axis::kTp, state),
                        x.tracked() || weight.trains);
  if (!out.tracked()) return out;
  RowBackward backward{
      &weight,       split,           overlap,    gradient_placement(weight, x.placement),
      out.placement, std::move(kept), GradSlot(x)};
  ctx.tape->record("row_parallel", ctx.layer,
                   [backward, tokens, result = GradSlot(out)](Backward& back) {
                     Value dy = back.take_value(result);
                     if (!dy.empty()) backward.run(back, dy, tokens);
                   });
  return out;
}

}  // namespace bev
