// Test cases of the output layer (head): options, tokens and dense reference results.
#pragma once

#include <cmath>

#include "base/text.h"
#include "kernels/loss.h"
#include "ops/loss.h"
#include "tests/support/lazy_lane.h"
#include "tests/support/op_checks.h"

namespace bev::test {

inline constexpr std::int64_t kHidden = 3, kVocabulary = 7;

struct Head {
  const char* name;
  std::int64_t tokens = 7;
  double logit_scale = 1, softcap = 0;
  bool chunks = false;
  bool padded = false;  // pad the rows of logits
};
inline const Head kHeads[] = {{"plain"},
                              {"scale", 7, 0.3},
                              {"softcap", 7, 1, 1.2},
                              {"scale and softcap", 7, 1.7, 0.9},
                              {"chunks", 67, 1, 0, true},
                              {"chunks with all", 67, 1.7, 0.9, true},
                              {"padded", 7, 1.7, 0.9, false, true},
                              {"padded chunks", 67, 1, 0, true, true}};

inline std::vector<std::int32_t> targets_of(std::int64_t tokens) {
  std::vector<std::int32_t> targets;
  for (std::int64_t t = 0; t < tokens; ++t) {
    targets.push_back(t % 4 == 2 ? -100 : static_cast<std::int32_t>(t * 5 % kVocabulary));
  }
  return targets;
}
// Kernels of a device that pads rows of logits, or null. Padding is NaN, so using it would show.
inline const Kernels* kernels_of(const Head& head) {
  static const LossKernels table = [] {
    LossKernels padded = lazy_kernels().loss;
    padded.logits.row_multiple = 16;
    return padded;
  }();
  static const Kernels padding = with_table(lazy_kernels(), table);
  return head.padded ? &padding : nullptr;
}

inline HeadSpec spec_of(const Head& head, const Bench& bench) {
  HeadSpec spec{bench.params[0].get(), head.logit_scale, head.softcap};
  if (head.chunks) spec.chunk_bytes = 1;
  return spec;
}

// The op's case of every head.
template <class Case>
std::vector<OpCase> head_rows(const Case& head_case_of) {
  std::vector<OpCase> rows;
  for (const Head& head : kHeads) rows.push_back(head_case_of(head));
  return rows;
}

// Inputs, the head's weight and kernels; `build` is the test's.
inline OpCase head_case(const char* op, const Head& head, OpBuild build) {
  OpCase out{concat(op, " ", head.name),
             {{{head.tokens, kHidden}, PlaceState::kCopied}},
             {{{kVocabulary, kHidden}, {Axis::kTp, 0, {}}}},
             std::move(build)};
  out.kernels = kernels_of(head);
  out.cpu_only = head.padded;  // the GPU's kernels pad all of them
  return out;
}

inline std::vector<double> dense_logits(const Head& head, const OpValues& values) {
  std::vector<double> logits;
  for (std::size_t t = 0; t < static_cast<std::size_t>(head.tokens); ++t) {
    for (std::size_t v = 0; v < kVocabulary; ++v) {
      double z = 0;
      for (std::size_t i = 0; i < kHidden; ++i) {
        z += values.inputs[0][t * kHidden + i] * values.params[0][v * kHidden + i];
      }
      z *= head.logit_scale;
      logits.push_back(head.softcap > 0 ? head.softcap * std::tanh(z / head.softcap) : z);
    }
  }
  return logits;
}

inline std::vector<double> dense_losses(const Head& head, const OpValues& values) {
  std::vector<double> logits = dense_logits(head, values), losses;
  std::vector<std::int32_t> targets = targets_of(head.tokens);
  for (std::size_t t = 0; t < targets.size(); ++t) {
    const double* row = logits.data() + t * kVocabulary;
    double sum = 0;
    for (std::size_t v = 0; v < kVocabulary; ++v) sum += std::exp(row[v]);
    losses.push_back(targets[t] < 0 ? 0 : std::log(sum) - row[targets[t]]);
  }
  return losses;
}

}  // namespace bev::test
