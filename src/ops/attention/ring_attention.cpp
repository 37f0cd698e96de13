// Ring attention over n ranks. At step s rank r has the keys and values of rank r - s; while it
// computes with them, it sends them on to rank r + 1. In the backward their gradients follow one
// step later:
//
//   step        0        1        2
//   rank 0    kv 0     kv 2     kv 1    dkv 1 -> rank 1, its owner
//   rank 1    kv 1     kv 0     kv 2    dkv 2 -> rank 2
//   rank 2    kv 2     kv 1     kv 0    dkv 0 -> rank 0
#include "ops/attention/ring_attention.h"

#include <limits>

#include "autograd/op_scope.h"
#include "base/error.h"
#include "kernels/attention.h"
#include "kernels/elementwise.h"

namespace bev {

namespace {

constexpr int kKeysChannel = 0, kGradientsChannel = 1;

// This rank's part of attention over shared sequences.
struct Part {
  Context& ctx;
  const RingAttentionSpec& context;
  const AttentionSpec& spec;
  double dropout = 0;

  int ranks() const { return context.group->size(); }
  int rank() const { return context.group->rank(); }
  const TokenSet& set(int member) const {
    return context.rows->sets[static_cast<std::size_t>(member)];
  }
  const TokenSet& mine() const { return set(rank()); }
  // The rank whose keys are here at a step of the ring.
  int owner(int step) const { return (rank() - step + ranks()) % ranks(); }
  int next() const { return (rank() + 1) % ranks(); }
  int previous() const { return (rank() + ranks() - 1) % ranks(); }
  std::int64_t q_width() const { return spec.q_columns(); }
  std::int64_t out_width() const { return spec.out_columns(); }
  std::int64_t kv_width() const { return spec.k_columns() + spec.v_columns(); }

  Tensor allocate(Dtype dtype, std::int64_t rows, std::int64_t columns, const char* tag) const {
    return ctx.allocate(dtype, {rows, columns}, tag);
  }
  Tensor zeros(Dtype dtype, std::int64_t rows, std::int64_t columns, const char* tag) const {
    Tensor x = allocate(dtype, rows, columns, tag);
    ctx.kernels.fill(ctx.stream, x, 0);
    return x;
  }
  // Columns [begin, begin + count) of x as a contiguous tensor.
  Tensor columns(const Tensor& x, std::int64_t begin, std::int64_t count, const char* tag) const {
    Tensor out = allocate(x.dtype(), x.shape()[0], count, tag);
    ctx.kernels.elementwise.copy_rows(ctx.stream, {.src = x.view().address(begin),
                                                   .dst = out.view().data,
                                                   .dtype = x.dtype(),
                                                   .rows = x.shape()[0],
                                                   .columns = count,
                                                   .src_stride = x.shape()[1],
                                                   .dst_stride = count});
    return out;
  }
  // The inverse of columns(), with conversion to the dtype of `to`.
  void set_columns(const Tensor& x, const Tensor& to, std::int64_t begin) const {
    Tensor from = x;
    if (x.dtype() != to.dtype()) {
      from = ctx.allocate(to.dtype(), x.shape(), "gradients");
      ctx.kernels.cast(ctx.stream, x, from);
    }
    ctx.kernels.elementwise.copy_rows(ctx.stream, {.src = from.view().data,
                                                   .dst = to.view().address(begin),
                                                   .dtype = to.dtype(),
                                                   .rows = to.shape()[0],
                                                   .columns = x.shape()[1],
                                                   .src_stride = x.shape()[1],
                                                   .dst_stride = to.shape()[1]});
  }

  // Kernel arguments for q rows `q_stride` apart and rows k | v.
  AttentionShape shape(std::span<const AttentionRun> runs, std::int64_t q_stride) const {
    AttentionShape out = attention_shape(ctx, spec, {q_stride, kv_width(), kv_width()}, runs);
    const ContextRows& rows = *context.rows;
    set_dropout(ctx, {runs, rows.samples, rows.sample_positions}, dropout, out);
    return out;
  }
  // Calls body(runs) for each pair of segments that has visible keys.
  template <class Body>
  void for_runs(const TokenSet& keys, const Body& body) const {
    for (int q = 0; q < mine().segments(); ++q) {
      for (int k = 0; k < keys.segments(); ++k) {
        std::vector<AttentionRun> runs = visible_runs(mine(), q, keys, k, spec.rule);
        if (!runs.empty()) body(runs);
      }
    }
  }
};

Tensor own_keys(const Part& part, const Tensor& qkv) {
  return part.columns(qkv, part.q_width(), part.kv_width(), "keys and values");
}

Tensor gather_keys(const Part& part, const Tensor& own) {
  std::int64_t tokens = part.context.gathered->tokens();
  Tensor by_rank = part.allocate(own.dtype(), tokens, part.kv_width(), "keys and values");
  part.context.group->all_gather(own, by_rank, "keys and values").wait();
  Tensor out = part.allocate(own.dtype(), tokens, part.kv_width(), "keys and values");
  copy_into_order(part.ctx, part.context.rows->sets, *part.context.gathered, by_rank, out);
  return out;
}

// Calls body(step, tokens of the keys, kv rows) for every K/V block. In the ring, the next block is
// in flight during body.
template <class Body>
void for_blocks(const Part& part, Tensor own, const Body& body) {
  if (part.context.gathered != nullptr) {
    return body(0, *part.context.gathered, gather_keys(part, own));
  }
  Tensor current = std::move(own);
  for (int step = 0; step < part.ranks(); ++step) {
    Tensor next;
    Work sent, received;
    if (step + 1 < part.ranks()) {
      next = part.allocate(current.dtype(), part.set(part.owner(step + 1)).tokens(),
                           part.kv_width(), "keys and values");
      sent = part.context.group->send(current, part.next(), kKeysChannel, "keys and values");
      received =
          part.context.group->receive(next, part.previous(), kKeysChannel, "keys and values");
    }
    body(step, part.set(part.owner(step)), current);
    sent.wait();
    received.wait();
    current = std::move(next);
  }
}

AttentionResult forward(const Part& part, const Tensor& qkv) {
  Context& ctx = part.ctx;
  std::int64_t tokens = qkv.shape()[0], heads = part.spec.q_heads;
  Tensor out = part.zeros(ctx.wide(), tokens, part.out_width(), "activations");
  Tensor lse = part.allocate(ctx.wide(), tokens, heads, "activations");
  ctx.kernels.fill(ctx.stream, lse, -std::numeric_limits<double>::infinity());
  Tensor part_out = part.allocate(ctx.dtype, tokens, part.out_width(), "activations");
  Tensor part_lse = part.allocate(ctx.wide(), tokens, heads, "activations");
  for_blocks(part, own_keys(part, qkv), [&](int, const TokenSet& keys, const Tensor& kv) {
    part.for_runs(keys, [&](const std::vector<AttentionRun>& runs) {
      AttentionShape shape = part.shape(runs, qkv.shape()[1]);
      ctx.kernels.attention.forward(ctx.stream, {.shape = shape,
                                                 .q = qkv.view().data,
                                                 .k = kv.view().data,
                                                 .v = kv.view().address(part.spec.k_columns()),
                                                 .out = part_out,
                                                 .lse = part_lse,
                                                 .max_logits = max_logits(ctx, part.spec)});
      ctx.kernels.attention.merge(
          ctx.stream,
          {.shape = shape, .out = out, .lse = lse, .part_out = part_out, .part_lse = part_lse});
    });
  });
  bound_logits(ctx, part.spec, {out, lse});
  // Sinks are included after the merge over all ranks, so that they count once.
  add_sinks(ctx, part.spec, {out, lse});
  if (ctx.dtype == ctx.wide()) return {out, lse};
  ctx.kernels.cast(ctx.stream, out, part_out);
  return {part_out, lse};
}

// Backward of one K/V block: accumulates dq and returns dkv (both in the wide dtype).
class BlockBackward {
 public:
  BlockBackward(const Part& part, const Tensor& qkv, const AttentionResult& kept, const Tensor& dy)
      : part_(part),
        kept_(kept),
        dy_(dy),
        q_(part.columns(qkv, 0, part.q_width(), "gradients")),
        delta_(part.allocate(part.ctx.wide(), qkv.shape()[0], part.spec.q_heads, "gradients")),
        dq_(part.zeros(part.ctx.wide(), qkv.shape()[0], part.q_width(), "gradients")) {}

  const Tensor& dq() const { return dq_; }

  Tensor run(const TokenSet& keys, const Tensor& kv) {
    Context& ctx = part_.ctx;
    Tensor dkv = part_.zeros(ctx.wide(), keys.tokens(), part_.kv_width(), "gradients");
    Tensor dq_now = part_.allocate(ctx.dtype, dq_.shape()[0], part_.q_width(), "gradients");
    Tensor dkv_now = part_.allocate(ctx.dtype, keys.tokens(), part_.kv_width(), "gradients");
    part_.for_runs(keys, [&](const std::vector<AttentionRun>& runs) {
      // The kernel leaves rows outside the runs unwritten.
      ctx.kernels.fill(ctx.stream, dq_now, 0);
      ctx.kernels.fill(ctx.stream, dkv_now, 0);
      std::int64_t values = part_.spec.k_columns();
      ctx.kernels.attention.backward(ctx.stream, {.shape = part_.shape(runs, part_.q_width()),
                                                  .q = q_.view().data,
                                                  .k = kv.view().data,
                                                  .v = kv.view().address(values),
                                                  .out = kept_.out,
                                                  .dout = dy_,
                                                  .lse = kept_.lse,
                                                  .delta = delta_,
                                                  .dq = dq_now.view().data,
                                                  .dk = dkv_now.view().data,
                                                  .dv = dkv_now.view().address(values)});
      ctx.kernels.elementwise.axpby(ctx.stream, 1, dq_now, 1, dq_);
      ctx.kernels.elementwise.axpby(ctx.stream, 1, dkv_now, 1, dkv);
    });
    return dkv;
  }

 private:
  const Part& part_;
  const AttentionResult& kept_;
  const Tensor& dy_;
  Tensor q_, delta_, dq_;
};

// Reduce-scatter of the gradients of the gathered rows: returns the sum over ranks for this rank's
// rows.
Tensor scatter_gradients(const Part& part, const Tensor& gathered) {
  Tensor by_rank =
      part.allocate(gathered.dtype(), gathered.shape()[0], part.kv_width(), "gradients");
  copy_out_of_order(part.ctx, part.context.rows->sets, *part.context.gathered, gathered, by_rank);
  Tensor own = part.allocate(gathered.dtype(), part.mine().tokens(), part.kv_width(), "gradients");
  part.context.group->reduce_scatter(by_rank, own, "gradient of keys and values").wait();
  return own;
}

// The ring of gradients: adds this rank's dkv to the gradient of each passing block, and receives
// the gradient of its own block at the end.
class GradientRing {
 public:
  explicit GradientRing(const Part& part) : part_(part) {}

  void pass(int step, Tensor dkv) {
    if (step > 0) {
      Tensor so_far = receive(part_.owner(step));
      part_.ctx.kernels.elementwise.add(part_.ctx.stream, so_far, dkv, dkv);
    }
    if (part_.ranks() == 1) {
      own_ = std::move(dkv);
      return;
    }
    sent_.wait();
    sent_ = part_.context.group->send(dkv, part_.next(), kGradientsChannel, kLabel);
    held_ = std::move(dkv);
  }
  Tensor finish() {
    if (part_.ranks() > 1) own_ = receive(part_.rank());
    sent_.wait();
    return std::move(own_);
  }

 private:
  static constexpr const char* kLabel = "gradient of keys and values";
  Tensor receive(int owner) {
    Tensor rows =
        part_.allocate(part_.ctx.wide(), part_.set(owner).tokens(), part_.kv_width(), "gradients");
    part_.context.group->receive(rows, part_.previous(), kGradientsChannel, kLabel).wait();
    return rows;
  }

  const Part& part_;
  Tensor held_, own_;
  Work sent_;
};

Tensor backward(const Part& part, const Tensor& qkv, const AttentionResult& kept,
                const Tensor& dy) {
  BlockBackward blocks(part, qkv, kept, dy);
  GradientRing ring(part);
  Tensor own;
  for_blocks(part, own_keys(part, qkv), [&](int step, const TokenSet& keys, const Tensor& kv) {
    Tensor dkv = blocks.run(keys, kv);
    if (part.context.gathered != nullptr) {
      own = scatter_gradients(part, dkv);
    } else {
      ring.pass(step, std::move(dkv));
    }
  });
  if (part.context.gathered == nullptr) own = ring.finish();
  Tensor dqkv = part.ctx.allocate(qkv.dtype(), qkv.shape(), "gradients");
  part.set_columns(blocks.dq(), dqkv, 0);
  part.set_columns(own, dqkv, part.q_width());
  return dqkv;
}

}  // namespace

Var ring_attention(Context& ctx, const Var& qkv, const RingAttentionSpec& context,
                   const AttentionSpec& spec) {
  OpScope scope(ctx, "context_attention");
  Part part{ctx, context, spec, ctx.training ? spec.rule.dropout : 0};
  Shape expected{part.mine().tokens(), part.q_width() + part.kv_width()};
  BEV_CHECK(qkv.shape() == expected, "context_attention: rows of ", qkv.shape(), " for ", expected);
  BEV_CHECK(qkv.placement[Axis::kTp] == PlaceState::kShard1, ErrorKind::kInternal,
            "context_attention: the input {", qkv.placement, "} must be split over heads");
  AttentionResult result = forward(part, qkv.tensor);
  bool wanted = qkv.tracked() || (spec.sinks.logits && spec.sinks.logits->trains);
  Var out = make_output(ctx, "context_attention", result.out, qkv.placement, wanted);
  if (!out.tracked()) return out;
  if (spec.recompute) result = {};
  ctx.tape->record("context_attention", ctx.layer,
                   [context, spec, result, dropout = part.dropout, saved = Saved(qkv),
                    in = GradSlot(qkv), to = GradSlot(out)](Backward& back) {
                     Tensor dy = back.take(to);
                     if (dy.empty()) return;
                     Part again{back.ctx, context, spec, dropout};
                     Tensor kept = saved.get(back.ctx);
                     AttentionResult made = spec.recompute ? forward(again, kept) : result;
                     add_sink_gradient(back, spec, in.placement, made, dy);
                     back.add(in, backward(again, kept, made, dy));
                   });
  return out;
}

}  // namespace bev
