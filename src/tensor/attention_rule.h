// What attention computes from queries, keys and values: one struct from the configuration of a
// layer down to the kernels.
#pragma once

#include <compare>
#include <cstdint>

namespace bev {

// What joins the softmax's sum besides the keys: nothing, exp(0), or exp of a learned logit per
// head.
enum class SoftmaxSink : std::uint8_t { kNone, kOne, kLearned };

// Scores are scale * q.k, then softcap * tanh(score / softcap) when softcap > 0. Key j is visible
// to a query standing at index i when (!causal || j <= i), (window < 0 || i - j <= window) and, not
// causal, (window < 0 || j - i <= window). Chunked windows do not slide: both positions lie in the
// same of the chunks of window + 1 tokens that a sequence is cut into.
struct AttentionRule {
  double scale = 1;
  double softcap = 0;        // 0: none
  std::int64_t window = -1;  // earlier keys seen besides a query's own; -1: all
  bool chunked = false;      // needs causal and a window
  bool causal = true;        // queries see no later keys
  double dropout = 0;        // of probabilities, in training
  SoftmaxSink sink = SoftmaxSink::kNone;

  auto operator<=>(const AttentionRule&) const = default;
};

}  // namespace bev
