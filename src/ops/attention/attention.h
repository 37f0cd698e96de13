// RoPE and attention (GQA, no S x S matrix) over fused rows q | k | v, [T, N D + K D + K V]: heads
// of q and k have D dims, heads of v and of the result V. Also cross attention and attention over
// the KV cache.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "autograd/tape.h"
#include "ops/sequence_layout.h"
#include "tensor/attention_rule.h"

namespace bev {

struct AttentionShape;
struct PositionScale;
struct KeyPages;

// Returns cos_sin [T, R] for the positions of the rows, given R/2 frequencies on the device.
Tensor rope_table(Context& ctx, const Tensor& positions, std::span<const double> frequencies,
                  double scale);
// Returns a table that multiplies heads of `head_size` (even) by the factor of their position and
// rotates nothing.
Tensor position_scale_table(Context& ctx, const Tensor& positions, const PositionScale& growth,
                            std::int64_t head_size);

struct RopeSpec {
  Tensor cos_sin;          // [T, R]
  std::int64_t heads = 0;  // the first heads of a row are rotated: q and k
  std::int64_t head_size = 0;
  bool interleaved = false;
  std::int64_t begin = 0;  // first rotated dim of a head
};
// Rotates in place: the producer of qkv must not have saved it.
Var rope(Context& ctx, const Var& qkv, const RopeSpec& spec);

// The learned logits of SoftmaxSink::kLearned.
struct AttentionSinks {
  const Param* logits = nullptr;  // [N of this tensor-parallel rank]; nullptr: all 0
  std::int64_t first = 0;         // index of the logit of the first head
};

struct AttentionSpec {
  std::int64_t q_heads = 0, kv_heads = 0, head_size = 0, v_head_size = 0;  // of this rank
  std::int64_t head_offset = 0;  // global index of the first q head
  AttentionRule rule;
  bool recompute = false;  // save only q, k, v; the backward recomputes the forward
  AttentionSinks sinks;

  std::int64_t q_columns() const { return q_heads * head_size; }
  std::int64_t k_columns() const { return kv_heads * head_size; }
  std::int64_t v_columns() const { return kv_heads * v_head_size; }
  std::int64_t out_columns() const { return q_heads * v_head_size; }
};
// Which rows attend to each other, and their sample and position (Philox counters of dropout). The
// referenced data must live until the backward.
struct AttentionRows {
  std::span<const AttentionRun> runs;
  const Tensor& samples;
  const Tensor& sample_positions;
};
// Row strides in elements.
struct RowStrides {
  std::int64_t q = 0, k = 0, v = 0;
};
// Kernel arguments for rows with these strides, without dropout.
AttentionShape attention_shape(const Context& ctx, const AttentionSpec& spec,
                               const RowStrides& strides, std::span<const AttentionRun> runs);
// Enables dropout of probabilities, keyed as in training; p = 0 disables it.
void set_dropout(const Context& ctx, const AttentionRows& rows, double p, AttentionShape& shape);

// Result of attention: out [T, N V] in any floating dtype and lse [T, N] in the wide dtype.
struct AttentionResult {
  Tensor out, lse;
};
// Where the heads of the spec raise their largest logits; empty: nobody asks.
View max_logits(const Context& ctx, const AttentionSpec& spec);
// Raises them from the result over all keys, before its sinks, where the kernels did not.
void bound_logits(const Context& ctx, const AttentionSpec& spec, const AttentionResult& result);
// Includes the sinks of the spec, if any, in a result over all keys.
void add_sinks(Context& ctx, const AttentionSpec& spec, const AttentionResult& result);
// Accumulates the gradient of the sink logits, given the gradient of the result. `placement` is
// that of q.
void add_sink_gradient(Backward& back, const AttentionSpec& spec, const Placement& placement,
                       const AttentionResult& result, const Tensor& dout);

// -> [T, N V]
Var attention(Context& ctx, const Var& qkv, const AttentionRows& rows, const AttentionSpec& spec);

// Cross attention: queries q [Tq, N D] attend to keys and values of other tokens, rows k | v of kv
// [Tk, K D + K V] -> [Tq, N V]. Each run has the queries and keys of one document; no key is in two
// runs. Dropout and sinks are not supported.
Var cross_attention(Context& ctx, const Var& q, const Var& kv, std::vector<AttentionRun> runs,
                    const AttentionSpec& spec);

// Paged KV cache of one layer: rows [blocks * block_tokens, K D] and [.., K V]. MLA caches rows
// [.., R + P] of latents and rotated keys in `keys`, and leaves `values` empty.
struct KvRows {
  Tensor keys, values;
};
// Which cached rows the queries of a step see, and where new rows go; shared by all layers. The
// tokens of a run are consecutive rows of the batch and the last ones of their sequence.
struct DecodeStep {
  std::vector<AttentionRun> runs;  // k_begin is not used
  Tensor device_runs;  // [runs] AttentionRun as bytes; those above are bounds; may be empty
  Tensor write_rows;   // [T] i32, rows of the cache
  Tensor block_table;  // [runs * table_stride] i32
  std::int64_t table_stride = 0;  // blocks of a run
  std::int64_t block_tokens = 0;
  // No run has earlier tokens: attention needs only the rows of the batch, as in training.
  bool whole_prompts = false;
  std::vector<std::int64_t> slots = {};  // for each run, the row of its fixed-size recurrent state

  KeyPages pages() const;
  const AttentionRun* current_runs() const;  // null: the runs are exact
  // The runs with keys in the batch itself instead of the cache.
  std::vector<AttentionRun> runs_in_batch() const;
};
// Writes the new k, v to the cache, then attends over it. No gradient.
Var cached_attention(Context& ctx, const Var& qkv, const KvRows& cache, const DecodeStep& step,
                     const AttentionSpec& spec);

}  // namespace bev
