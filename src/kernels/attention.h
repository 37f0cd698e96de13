// Fused attention with online softmax (FlashAttention): the S x S score matrix is never
// materialised.
#pragma once

#include <cstdint>
#include <span>

#include "tensor/attention_rule.h"
#include "tensor/attention_run.h"
#include "tensor/random_rows.h"
#include "tensor/stream.h"
#include "tensor/view.h"

namespace bev {

// Arguments that forward and backward share. Rows of q are q_stride elements apart, with head h at
// h * head_size; k likewise, v at h * v_head_size. GQA: N q heads share K kv heads (N % K == 0),
// and q head h reads kv head h / (N / K). A head has at most 256 dims, or 1024 in the forward
// without dropout. Dropout applies to probabilities: the Philox row is random.sample / position of
// the query, the column is the position of the key in its sequence, and the stream is random.stream
// + global head (head_offset + h). The forward, which may see only a part of the keys, does not
// apply the rule's sink: add_sinks does.
struct AttentionShape {
  std::span<const AttentionRun> runs;  // host memory on both backends
  std::int64_t q_heads = 0, kv_heads = 0, head_size = 0, v_head_size = 0;
  std::int64_t q_stride = 0, k_stride = 0, v_stride = 0;
  Dtype dtype = Dtype::kF32;
  AttentionRule rule;
  RandomRows random;
  std::int64_t head_offset = 0;
};

// Paged keys and values (block tables): key j of run i is row
//   table[i * stride + j / block_tokens] * block_tokens + j % block_tokens
// of k and v, and the k_begin of the runs is not used.
struct KeyPages {
  const std::int32_t* table = nullptr;  // device, [runs, stride]; null: contiguous rows
  std::int64_t stride = 0;              // blocks of a run
  std::int64_t block_tokens = 0;        // a power of two
};

// Rows of out are [N * v_head_size], contiguous. lse [T, N] in the accumulate type is the
// log-sum-exp of the scores. A query that sees no key gets out = 0 and lse = -infinity.
struct AttentionForwardArgs {
  AttentionShape shape;
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  View out;
  View lse;
  // Device, one for each run of the shape. If set, k_count and offset are read here and those of
  // the shape are upper bounds; the other members are the same in both. A CUDA graph of a decode
  // step reads its progress here.
  const AttentionRun* device_runs = nullptr;
  KeyPages pages = {};
  // [N] in the accumulate type; empty: not wanted. Element h is raised to the largest score of head
  // h that enters a softmax. Only by backends without bound_logits.
  View max_logits = {};
};

// Merges attention over two disjoint sets of keys (ring attention, split-KV): for all rows of the
// runs, out and lse (both in the accumulate type) become those of the union, given part_out (in the
// dtype of shape) and part_lse of the second set.
struct AttentionMergeArgs {
  AttentionShape shape;
  View out, lse;
  View part_out, part_lse;
};

// dq, dk, dv have the strides of q, k, v and are overwritten for all rows of the runs; no key may
// be in two runs. out and lse may cover more keys than the runs do: the gradients are then the
// contribution of the keys in the runs. delta [T, N] is scratch in the accumulate type.
struct AttentionBackwardArgs {
  AttentionShape shape;
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  View out, dout;
  View lse, delta;
  void *dq = nullptr, *dk = nullptr, *dv = nullptr;
};

// Attention sinks: a learned logit per head that enters the softmax denominator and has no value.
// Given out [T, N D] and lse [T, N] over the keys, updates both in place to include the sink. out
// may have any floating dtype.
struct AttentionSinkArgs {
  View sinks;  // [N]; empty: all 0
  View out, lse;
};

// Contribution of each row to the gradient of the sinks, given out and lse that include them:
// terms[t, first + h] = -exp(sink_h - lse[t, h]) * dot(dout, out)[t, h] for the N heads. terms is
// [T, >= first + N] in the accumulate type.
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
  // Raises max_logits [N], which is not below 0, to the largest of lse [T, N] of each head, of all
  // keys and no sinks. That is above the largest score by at most the logarithm of the number of
  // keys. Null: forward raises max_logits, to the largest score itself.
  void (*bound_logits)(const Stream&, const View& lse, const View& max_logits);
};

}  // namespace bev
