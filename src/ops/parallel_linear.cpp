#include "ops/parallel_linear.h"

#include <vector>

#include "autograd/op_scope.h"
#include "base/error.h"
#include "ops/linear.h"

namespace bev {

namespace {

Range block_of(const Group& group, std::int64_t tokens, int member) {
  return shard_range(tokens, group.size(), member);
}

Tensor gather_rows(Context& ctx, const Tensor& part, std::int64_t tokens, const char* label,
                   Work& pending) {
  Tensor whole = ctx.allocate(part.dtype(), {tokens, part.shape()[1]}, "gathered tokens");
  pending = ctx.mesh.tp().all_gather(part, whole, label);
  return whole;
}

// The rows of all tp ranks, given this rank's. body(rows of all, range) is called once a range is
// there: block by block, this rank's first, or for all of it.
template <class Body>
Tensor gather_blocks(Context& ctx, const Tensor& part, std::int64_t tokens, const char* label,
                     bool overlap, const Body& body) {
  Group& tp = ctx.mesh.tp();
  if (!overlap) {
    Work pending;
    Tensor whole = gather_rows(ctx, part, tokens, label, pending);
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
  ctx.kernels.elementwise.cast(ctx.stream, part, whole.view().rows(own.begin, own.end));
  body(whole, own);
  for (int step = 1; step < tp.size(); ++step) {
    received[static_cast<std::size_t>(step - 1)].wait();
    body(whole, block_of(tp, tokens, (tp.rank() - step + tp.size()) % tp.size()));
  }
  for (Work& work : sent) work.wait();
  return whole;
}

// product(rows, out) makes this rank's partial sum of any rows; the result is the sum of this
// rank's rows. The block of the next rank is made first and travels while the others are made.
template <class Product>
Tensor scatter_blocks(Context& ctx, std::int64_t tokens, std::int64_t columns, const char* label,
                      const Product& product) {
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
    product(rows, outgoing.back());
    works.push_back(tp.send(outgoing.back(), to, 0, label));
    Tensor& in = incoming[static_cast<std::size_t>(from)];
    in = make(own.size());
    works.push_back(tp.receive(in, from, 0, label));
  }
  Tensor& mine = incoming[static_cast<std::size_t>(tp.rank())];
  mine = make(own.size());
  product(own, mine);
  for (Work& work : works) work.wait();
  // In rank order and rounded once, as a reduce-scatter adds.
  Tensor sum = ctx.allocate(ctx.wide(), {own.size(), columns}, "activations");
  for (std::size_t i = 0; i < incoming.size(); ++i) {
    if (i == 0) {
      ctx.kernels.elementwise.cast(ctx.stream, incoming[i], sum);
    } else {
      ctx.kernels.elementwise.axpby(ctx.stream, 1, incoming[i], 1, sum);
    }
  }
  if (ctx.wide() == ctx.dtype) return sum;
  ctx.kernels.elementwise.cast(ctx.stream, sum, mine);
  return mine;
}

void check_input(const Var& x, std::int64_t columns, const Param& weight, bool ok,
                 const char* expected) {
  BEV_CHECK(x.shape().ndim() == 2 && x.shape()[1] == columns, "linear ", weight.name, ": input ",
            x.shape(), " for a weight ", weight.local);
  BEV_CHECK(ok, ErrorKind::kInternal, "linear ", weight.name, ": the input {", x.placement,
            "} must be ", expected, " over tp");
}

void add_weight_gradient(Context& ctx, const Param& weight, const Placement& placement,
                         const Tensor& dy, const Tensor& x) {
  GradSink sink = ctx.grads.sink(weight, placement);
  ctx.kernels.gemm.gemm(ctx.stream, {dy, x, sink.view, true, false, 1, sink.beta, {}});
  ctx.grads.done(weight, std::move(sink));
}

// A gradient that is being summed over tp.
struct PendingGradient {
  Tensor partial, sum;
  Work reducing;  // given up before the tensors go
};

// What the backward of a column-parallel linear needs besides dy.
struct ColumnBackward {
  const Param* weight;
  const Param* bias;
  bool split;  // x is this rank's part of the tokens
  Placement weight_placement, bias_placement;
  Saved x;
  GradSlot in;

  void run(Backward& back, const Tensor& dy) const {
    Context& ctx = back.ctx;
    Tensor part, whole;
    Work gathering;  // reads part until it is waited for
    // Weight gradients that are put off gather x when they are due.
    if (split && weight->trains && ctx.weight_work == nullptr) {
      part = x.get(ctx);
      whole = gather_rows(ctx, part, dy.shape()[0], "tp input", gathering);
    }
    PendingGradient dx;
    if (in.wanted()) dx = start_input_gradient(ctx, dy);
    gathering.wait();
    part = Tensor();
    back.weight_work([*this, dy, whole](Context& wctx) { add_gradients(wctx, dy, whole); });
    if (!in.wanted()) return;
    dx.reducing.wait();
    back.add(in, std::move(dx.sum));
  }

 private:
  PendingGradient start_input_gradient(Context& ctx, const Tensor& dy) const {
    Group& tp = ctx.mesh.tp();
    std::int64_t tokens = dy.shape()[0], columns = weight->local[1];
    PendingGradient dx;
    dx.partial = ctx.allocate(dy.dtype(), {tokens, columns}, "gradients");
    {
      WeightLease lease = ctx.weights.use(*weight);
      ctx.kernels.gemm.gemm(ctx.stream, {dy, lease.view, dx.partial, false, false, 1, 0, {}});
    }
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

  // `whole` is x of all tokens, or nothing yet.
  void add_gradients(Context& ctx, const Tensor& dy, Tensor whole) const {
    if (bias != nullptr && bias->trains) add_bias_gradient(ctx, *bias, dy, bias_placement);
    if (!weight->trains) return;
    if (whole.empty()) whole = whole_input(ctx, dy.shape()[0]);
    add_weight_gradient(ctx, *weight, weight_placement, dy, whole);
  }

  // Gathered even where a rank's part has all the tokens: the others have none and wait for it.
  Tensor whole_input(Context& ctx, std::int64_t tokens) const {
    Tensor part = x.get(ctx);
    if (!split) return part;
    Work gathering;
    Tensor whole = gather_rows(ctx, part, tokens, "tp input", gathering);
    gathering.wait();
    return whole;
  }
};

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
  {
    WeightLease w = ctx.weights.use(weight);
    WeightLease b = bias ? ctx.weights.use(*bias) : WeightLease{};
    auto product = [&](const View& rows, const View& out) {
      ctx.kernels.gemm.gemm(ctx.stream, {rows, w.view, out, false, true, 1, 0, b.view});
    };
    if (!split) {
      product(x.tensor, y);
    } else {
      gather_blocks(
          ctx, x.tensor, tokens, "tp input", overlap, [&](const Tensor& whole, Range rows) {
            product(whole.view().rows(rows.begin, rows.end), y.view().rows(rows.begin, rows.end));
          });
    }
  }
  bool trains = weight.trains || (bias && bias->trains);
  Placement placement = x.placement.with(Axis::kTp, PlaceState::kShard1);
  Var out = make_output(ctx, "column_parallel", std::move(y), placement, x.tracked() || trains);
  if (!out.tracked()) return out;
  ColumnBackward backward{&weight,
                          bias,
                          split,
                          gradient_placement(weight, x.placement),
                          bias ? gradient_placement(*bias, x.placement) : Placement(),
                          weight.trains ? Saved(x) : Saved(),
                          GradSlot(x)};
  ctx.tape->record("column_parallel", ctx.layer,
                   [backward, result = GradSlot(out)](Backward& back) {
                     Tensor dy = back.take(result);
                     if (!dy.empty()) backward.run(back, dy);
                   });
  return out;
}

namespace {

// What the backward of a row-parallel linear needs besides dy.
struct RowBackward {
  const Param* weight;
  bool split, overlap;  // dy is this rank's part of the tokens
  Placement placement;
  Saved x;
  GradSlot in;

  void run(Backward& back, Tensor dy, std::int64_t tokens) const {
    Context& ctx = back.ctx;
    Tensor dx;
    if (in.wanted()) dx = ctx.allocate(dy.dtype(), {tokens, weight->local[1]}, "gradients");
    {
      WeightLease lease = in.wanted() ? ctx.weights.use(*weight) : WeightLease{};
      auto product = [&](const Tensor& whole, Range rows) {
        if (dx.empty()) return;
        ctx.kernels.gemm.gemm(ctx.stream, {whole.view().rows(rows.begin, rows.end),
                                           lease.view,
                                           dx.view().rows(rows.begin, rows.end),
                                           false,
                                           false,
                                           1,
                                           0,
                                           {}});
      };
      if (split) {
        dy = gather_blocks(ctx, dy, tokens, "tp output gradient", overlap, product);
      } else {
        product(dy, {0, tokens});
      }
    }
    if (weight->trains) {
      back.weight_work([w = weight, p = placement, kept = x, dy](Context& wctx) {
        add_weight_gradient(wctx, *w, p, dy, kept.get(wctx));
      });
    }
    if (in.wanted()) back.add(in, std::move(dx));
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
  {
    WeightLease w = ctx.weights.use(weight);
    auto product = [&](Range rows, const Tensor& out) {
      ctx.kernels.gemm.gemm(
          ctx.stream,
          {x.tensor.view().rows(rows.begin, rows.end), w.view, out, false, true, 1, 0, {}});
    };
    if (split && overlap) {
      y = scatter_blocks(ctx, tokens, columns, "tp output", product);
    } else {
      y = ctx.allocate(ctx.dtype, {tokens, columns}, "activations");
      product({0, tokens}, y);
    }
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
  RowBackward backward{&weight,
                       split,
                       overlap,
                       gradient_placement(weight, x.placement),
                       weight.trains ? Saved(x) : Saved(),
                       GradSlot(x)};
  ctx.tape->record("row_parallel", ctx.layer,
                   [backward, tokens, result = GradSlot(out)](Backward& back) {
                     Tensor dy = back.take(result);
                     if (!dy.empty()) backward.run(back, std::move(dy), tokens);
                   });
  return out;
}

namespace {

// Between rows q | k | v with whole keys and values and the kv ranks' parts of k | v, rank after
// rank.
void copy_keys(Context& ctx, const Tensor& rows, const Tensor& parts, std::int64_t q_columns,
               bool into_rows) {
  std::int64_t n = ctx.mesh.group(MeshGroup::kKv).size(), tokens = rows.shape()[0];
  std::int64_t stride = rows.shape()[1], head = (stride - q_columns) / 2, part = head / n;
  for (std::int64_t member = 0; member < n; ++member) {
    for (std::int64_t half = 0; half < 2; ++half) {
      std::byte* whole = rows.view().address(q_columns + half * head + member * part);
      std::byte* cut = parts.view().address(member * tokens * 2 * part + half * part);
      CopyRowsArgs args{cut, whole, rows.dtype(), tokens, part, 2 * part, stride};
      if (!into_rows) args = {whole, cut, rows.dtype(), tokens, part, stride, 2 * part};
      ctx.kernels.elementwise.copy_rows(ctx.stream, args);
    }
  }
}

// Columns [begin, begin + count) of every row from one tensor to another.
void copy_columns(Context& ctx, const Tensor& from, std::int64_t from_begin, const Tensor& to,
                  std::int64_t to_begin, std::int64_t count) {
  ctx.kernels.elementwise.copy_rows(
      ctx.stream, {from.view().address(from_begin), to.view().address(to_begin), from.dtype(),
                   from.shape()[0], count, from.shape()[1], to.shape()[1]});
}

}  // namespace

Var share_keys(Context& ctx, const Var& qkv, std::int64_t q_columns) {
  OpScope scope(ctx, "share_keys");
  Group& kv = ctx.mesh.group(MeshGroup::kKv);
  std::int64_t tokens = qkv.shape()[0], part = qkv.shape()[1] - q_columns;  // of k and v
  Tensor own = ctx.allocate(qkv.dtype(), {tokens, part}, "activations");
  copy_columns(ctx, qkv.tensor, q_columns, own, 0, part);
  Tensor parts = ctx.allocate(qkv.dtype(), {kv.size() * tokens * part}, "activations");
  kv.all_gather(own.view().flat(), parts, "keys and values").wait();
  Tensor rows = ctx.allocate(qkv.dtype(), {tokens, q_columns + kv.size() * part}, "activations");
  copy_columns(ctx, qkv.tensor, 0, rows, 0, q_columns);
  copy_keys(ctx, rows, parts, q_columns, true);
  Var out = make_output(ctx, "share_keys", std::move(rows), qkv.placement, qkv.tracked());
  if (!out.tracked()) return out;
  ctx.tape->record(
      "share_keys", ctx.layer,
      [q_columns, part, in = GradSlot(qkv), result = GradSlot(out)](Backward& back) {
        Tensor dy = back.take(result);
        if (dy.empty()) return;
        Context& bctx = back.ctx;
        // Every rank has the gradient that its own queries give.
        Group& group = bctx.mesh.group(MeshGroup::kKv);
        std::int64_t rows_count = dy.shape()[0];
        Tensor partial = bctx.allocate(dy.dtype(), {group.size() * rows_count * part}, "gradients");
        copy_keys(bctx, dy, partial, q_columns, false);
        Tensor sum = bctx.allocate(dy.dtype(), {rows_count, part}, "gradients");
        group.reduce_scatter(partial, sum.view().flat(), "gradient of keys and values").wait();
        Tensor dx = bctx.allocate(dy.dtype(), {rows_count, q_columns + part}, "gradients");
        copy_columns(bctx, dy, 0, dx, 0, q_columns);
        copy_columns(bctx, sum, 0, dx, q_columns, part);
        back.add(in, std::move(dx));
      });
  return out;
}

}  // namespace bev
