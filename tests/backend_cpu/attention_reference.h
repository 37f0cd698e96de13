// Reference attention by definition: dense scores in f64.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/philox.h"
#include "kernels/attention.h"

namespace bev::kernel_test {

struct AttentionValues {
  std::vector<double> q, k, v, dout;  // with the strides of the shape; dout [T, N * D]
};

struct AttentionResult {
  std::vector<double> out, lse;    // [T, N * D], [T, N]
  std::vector<double> dq, dk, dv;  // shaped like q, k, v
};

struct DenseRow {
  std::vector<double> score, slope, prob, keep;  // per key; score -infinity if masked
  double lse = 0;
};

inline bool key_is_visible(const AttentionShape& shape, std::int64_t i, std::int64_t j) {
  if (shape.rule.causal) return j <= i && (shape.rule.window < 0 || i - j <= shape.rule.window);
  return shape.rule.window < 0 || std::abs(i - j) <= shape.rule.window;
}

inline double dropout_factor(const AttentionShape& shape, std::int64_t row, std::int64_t head,
                             std::int64_t key) {
  if (shape.rule.dropout == 0) return 1;
  const auto at = static_cast<std::uint32_t>(key);
  const PhiloxCounter counter = {
      at / 4, static_cast<std::uint32_t>(shape.random.position[row]),
      static_cast<std::uint32_t>(shape.random.sample[row]),
      shape.random.stream + static_cast<std::uint32_t>(shape.head_offset + head)};
  const float uniform = uniform_of(philox(counter, *shape.random.random_key)[at % 4]);
  return uniform >= shape.rule.dropout ? 1 / (1 - shape.rule.dropout) : 0;
}

// Scores and probabilities of query i of the run in head h.
inline DenseRow dense_row(const AttentionShape& shape, const AttentionRun& run,
                          const AttentionValues& in, std::int64_t i, std::int64_t h) {
  const std::int64_t size = shape.head_size, kv = h / (shape.q_heads / shape.kv_heads);
  const auto keys = static_cast<std::size_t>(run.k_count);
  DenseRow row{std::vector<double>(keys, -std::numeric_limits<double>::infinity()),
               std::vector<double>(keys, 0), std::vector<double>(keys, 0),
               std::vector<double>(keys, 0)};
  double most = -std::numeric_limits<double>::infinity(), sum = 0;
  for (std::int64_t j = 0; j < run.k_count; ++j) {
    if (!key_is_visible(shape, run.offset + i, j)) continue;
    double dot = 0;
    for (std::int64_t d = 0; d < size; ++d) {
      dot += in.q[static_cast<std::size_t>((run.q_begin + i) * shape.q_stride + h * size + d)] *
             in.k[static_cast<std::size_t>((run.k_begin + j) * shape.k_stride + kv * size + d)];
    }
    const auto at = static_cast<std::size_t>(j);
    const double raw = shape.rule.scale * dot;
    const double squashed = shape.rule.softcap > 0 ? std::tanh(raw / shape.rule.softcap) : 0;
    row.score[at] = shape.rule.softcap > 0 ? shape.rule.softcap * squashed : raw;
    row.slope[at] = 1 - squashed * squashed;
    row.keep[at] = dropout_factor(shape, run.q_begin + i, h, run.key_position + j);
    most = std::max(most, row.score[at]);
  }
  if (!std::isfinite(most)) {
    row.lse = most;
    return row;
  }
  for (double score : row.score) sum += std::exp(score - most);
  row.lse = most + std::log(sum);
  for (std::size_t j = 0; j < keys; ++j) row.prob[j] = std::exp(row.score[j] - row.lse);
  return row;
}

// Adds the contribution of one query and head to the result.
inline void add_dense_row(const AttentionShape& shape, const AttentionRun& run,
                          const AttentionValues& in, std::int64_t i, std::int64_t h,
                          AttentionResult& result) {
  const DenseRow row = dense_row(shape, run, in, i, h);
  const std::int64_t size = shape.head_size, kv = h / (shape.q_heads / shape.kv_heads);
  const std::int64_t v_size = shape.v_head_size;
  const auto q_at = static_cast<std::size_t>((run.q_begin + i) * shape.q_stride + h * size);
  const auto out_at = static_cast<std::size_t>(((run.q_begin + i) * shape.q_heads + h) * v_size);
  const auto k_at = [&](std::size_t j) {
    return static_cast<std::size_t>(run.k_begin * shape.k_stride + kv * size) +
           j * static_cast<std::size_t>(shape.k_stride);
  };
  const auto v_at = [&](std::size_t j) {
    return static_cast<std::size_t>(run.k_begin * shape.v_stride + kv * v_size) +
           j * static_cast<std::size_t>(shape.v_stride);
  };
  const auto dims = static_cast<std::size_t>(size), v_dims = static_cast<std::size_t>(v_size);
  std::vector<double> dprob(row.prob.size());
  double delta = 0;
  for (std::size_t j = 0; j < row.prob.size(); ++j) {
    for (std::size_t d = 0; d < v_dims; ++d) {
      result.out[out_at + d] += row.prob[j] * row.keep[j] * in.v[v_at(j) + d];
      result.dv[v_at(j) + d] += row.prob[j] * row.keep[j] * in.dout[out_at + d];
      dprob[j] += row.keep[j] * in.dout[out_at + d] * in.v[v_at(j) + d];
    }
    delta += row.prob[j] * dprob[j];
  }
  for (std::size_t j = 0; j < row.prob.size(); ++j) {
    const double dscore = shape.rule.scale * row.slope[j] * row.prob[j] * (dprob[j] - delta);
    for (std::size_t d = 0; d < dims; ++d) {
      result.dq[q_at + d] += dscore * in.k[k_at(j) + d];
      result.dk[k_at(j) + d] += dscore * in.q[q_at + d];
    }
  }
  result.lse[static_cast<std::size_t>((run.q_begin + i) * shape.q_heads + h)] = row.lse;
}

// Rows outside of all runs, and columns between the heads and the stride, are NaN.
inline AttentionResult dense_attention(const AttentionShape& shape, const AttentionValues& in,
                                       std::int64_t q_rows) {
  const double untouched = std::numeric_limits<double>::quiet_NaN();
  const std::int64_t size = shape.head_size, v_size = shape.v_head_size;
  AttentionResult result;
  result.out.assign(static_cast<std::size_t>(q_rows * shape.q_heads * v_size), untouched);
  result.lse.assign(static_cast<std::size_t>(q_rows * shape.q_heads), untouched);
  result.dq.assign(in.q.size(), untouched);
  result.dk.assign(in.k.size(), untouched);
  result.dv.assign(in.v.size(), untouched);
  const auto clear = [](std::vector<double>& x, std::int64_t row, std::int64_t stride,
                        std::int64_t columns) {
    std::fill_n(x.begin() + row * stride, columns, 0.0);
  };
  for (const AttentionRun& run : shape.runs) {
    for (std::int64_t i = run.q_begin; i < run.q_begin + run.q_count; ++i) {
      clear(result.out, i, shape.q_heads * v_size, shape.q_heads * v_size);
      clear(result.dq, i, shape.q_stride, shape.q_heads * size);
    }
    for (std::int64_t j = run.k_begin; j < run.k_begin + run.k_count; ++j) {
      clear(result.dk, j, shape.k_stride, shape.kv_heads * size);
      clear(result.dv, j, shape.v_stride, shape.kv_heads * v_size);
    }
    for (std::int64_t i = 0; i < run.q_count; ++i) {
      for (std::int64_t h = 0; h < shape.q_heads; ++h) {
        add_dense_row(shape, run, in, i, h, result);
      }
    }
  }
  return result;
}

}  // namespace bev::kernel_test
