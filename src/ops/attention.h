// Rotary positions and attention over fused rows q | k | v of [T, N D + K D + K V]: heads of q and
// k have D dims, those of v and of the result V.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "autograd/tape.h"
#include "ops/sequence_layout.h"
#include "tensor/attention_rule.h"

namespace bev {

struct AttentionShape;

// cos_sin [T, R] for the rows' positions, given R/2 frequencies on the device.
Tensor rope_table(Context& ctx, const Tensor& positions, std::span<const double> frequencies,
                  double scale);

struct RopeSpec {
  Tensor cos_sin;          // [T, R]
  std::int64_t heads = 0;  // of the row's first heads: q and k
  std::int64_t head_size = 0;
  bool interleaved = false;
  std::int64_t begin = 0;  // first rotated dim of a head
};
// In place: the producer of qkv must not keep it.
Var rope(Context& ctx, const Var& qkv, const RopeSpec& spec);

// The learned logits of SoftmaxSink::kLearned.
struct AttentionSinks {
  const Param* logits = nullptr;  // [N of this tensor-parallel rank]; nullptr: all 0
  std::int64_t first = 0;         // where those of the first head lie in it
};

struct AttentionSpec {
  std::int64_t q_heads = 0, kv_heads = 0, head_size = 0, v_head_size = 0;  // of this rank
  std::int64_t head_offset = 0;  // global number of its first q head
  AttentionRule rule;
  bool recompute = false;  // keep q, k, v only; run forward again in the backward
  AttentionSinks sinks;

  std::int64_t q_columns() const { return q_heads * head_size; }
  std::int64_t k_columns() const { return kv_heads * head_size; }
  std::int64_t v_columns() const { return kv_heads * v_head_size; }
  std::int64_t out_columns() const { return q_heads * v_head_size; }
};
// Which rows see each other, and the tokens that they are (for random numbers). What it refers to
// must live until the backward.
struct AttentionRows {
  std::span<const AttentionRun> runs;
  const Tensor& samples;
  const Tensor& sample_positions;
};
// Elements from row to row.
struct RowStrides {
  std::int64_t q = 0, k = 0, v = 0;
};
// What kernels need for rows that lie so; without dropout.
AttentionShape attention_shape(const Context& ctx, const AttentionSpec& spec,
                               const RowStrides& strides, std::span<const AttentionRun> runs);
// Dropout of probabilities as in training, p 0: none.
void set_dropout(const Context& ctx, const AttentionRows& rows, double p, AttentionShape& shape);

// What attention gives: out [T, N V] in some dtype and lse [T, N] in the wide one.
struct AttentionResult {
  Tensor out, lse;
};
// Joins the spec's sinks to the result over all keys; nothing where it has none.
void add_sinks(Context& ctx, const AttentionSpec& spec, const AttentionResult& result);
// The gradient of the sinks goes to its sink, given that of the result. `placement` is that of q.
void add_sink_gradient(Backward& back, const AttentionSpec& spec, const Placement& placement,
                       const AttentionResult& result, const Tensor& dout);

// -> [T, N V]
Var attention(Context& ctx, const Var& qkv, const AttentionRows& rows, const AttentionSpec& spec);

// Attention of queries q [Tq, N D] to keys and values of other tokens, rows k | v of kv
// [Tk, K D + K V] -> [Tq, N V]. Each run has the queries and the keys of one document; no key is in
// two runs. Without dropout and sinks.
Var cross_attention(Context& ctx, const Var& q, const Var& kv, std::vector<AttentionRun> runs,
                    const AttentionSpec& spec);

// Keys and values of one layer kept between calls of a generation; rows [capacity, K D] and
// [capacity, K V]. Latent attention keeps [capacity, R + P] of latents and rotated keys instead,
// and no values.
struct KvRows {
  Tensor keys, values;
};
// Which kept rows the queries of a call see, and where the new ones go; the same for all layers.
struct DecodeStep {
  std::vector<AttentionRun> runs;
  Tensor write_rows;  // [T] i32
  // [runs] i32: keys of each run by now, where the runs say only how many there may be; or empty.
  Tensor key_counts;
  std::vector<std::int64_t> slots = {};  // of each run: the row of its states of constant size
};
// Attention of new rows over what is kept, after the new k, v were put there. No gradient.
Var cached_attention(Context& ctx, const Var& qkv, const KvRows& cache, const DecodeStep& step,
                     const AttentionSpec& spec);

}  // namespace bev
