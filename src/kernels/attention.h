// Attention without the S x S matrix.
#pragma once

#include <cstdint>
#include <span>

#include "tensor/attention_run.h"
#include "tensor/random_rows.h"
#include "tensor/stream.h"
#include "tensor/view.h"

namespace bev {

// What forward and backward share. q rows are q_stride elements apart, head h at h * head_size; k
// likewise, v at h * v_head_size. N q heads share K kv heads (N % K == 0), q head h reads kv head
// h / (N / K). Heads have at most 256 dims, in the forward without dropout 1024. Key
// j is visible to a query standing at index i when (!causal || j <= i), (window < 0 || i - j <=
// window) and, not causal, (window < 0 || j - i <= window). Scores are scale * q.k, then softcap *
// tanh(score / softcap) when softcap > 0. Dropout on probabilities: random.sample / position of the
// query row; the generator's column is the key's position in its sequence; the stream is
// random.stream + global head (head_offset + h).
struct AttentionShape {
  std::span<const AttentionRun> runs;  // host memory on both backends
  std::int64_t q_heads = 0, kv_heads = 0, head_size = 0, v_head_size = 0;
  std::int64_t q_stride = 0, k_stride = 0, v_stride = 0;
  Dtype dtype = Dtype::kF32;
  double scale = 1, softcap = 0;
  std::int64_t window = -1;
  bool causal = true;
  double dropout = 0;
  RandomRows random;
  std::int64_t head_offset = 0;
};

// out rows are [N * v_head_size], contiguous. lse [T, N] in the accumulate type: log of the sum of
// exp scores. A query that sees no key gives 0 and lse -infinity.
struct AttentionForwardArgs {
  AttentionShape shape;
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  View out;
  View lse;
  // Given (device): run i has only key_counts[i] <= k_count keys by now, and its queries are the
  // last of them. A recorded step of a generation reads there how far it is.
  const std::int32_t* key_counts = nullptr;
};

// Joins what queries saw of two sets of keys: out, lse (both in the accumulate type) of all rows
// that the runs name become those of both sets together, given part_out (in shape's dtype) and
// part_lse of the second.
struct AttentionMergeArgs {
  AttentionShape shape;
  View out, lse;
  View part_out, part_lse;
};

// dq, dk, dv have the strides of q, k, v and are overwritten for all rows of the runs; no key may
// be in two runs. out and lse may be of more keys than the runs': the gradients are then the part
// that these keys give. delta [T, N] is scratch in the accumulate type.
struct AttentionBackwardArgs {
  AttentionShape shape;
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  View out, dout;
  View lse, delta;
  void *dq = nullptr, *dk = nullptr, *dv = nullptr;
};

// A logit for each head that joins the sum of its exponentials and has no value: out [T, N D] and
// lse [T, N] of the keys become those with it. out's dtype is any floating one.
struct AttentionSinkArgs {
  View sinks;  // [N]; empty: all 0
  View out, lse;
};

// What each row adds to the gradient of the sinks, given out and lse with them: terms[t, first + h]
// = -exp(sink_h - lse[t, h]) * (dout . out of t, h) for the N heads; terms [T, >= first + N] in the
// accumulate type.
struct SinkTermsArgs {
  View sinks;
  View out, dout, lse;
  View terms;
  std::int64_t first = 0;
};

struct AttentionKernels {
  void (*forward)(const Stream&, const AttentionForwardArgs&);
  void (*merge)(const Stream&, const AttentionMergeArgs&);
  void (*backward)(const Stream&, const AttentionBackwardArgs&);
  void (*add_sinks)(const Stream&, const AttentionSinkArgs&);
  void (*sink_terms)(const Stream&, const SinkTermsArgs&);
};

}  // namespace bev
