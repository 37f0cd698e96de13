// Attention cases in many shapes, and the comparison of a CUDA path with the CPU kernel in f64:
// rows of the runs must be correct, all other rows must stay unchanged.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "backend/cuda/attention/attention_paths.h"
#include "tests/backend_cuda/rig.h"

namespace bev::cuda_test {

enum class Path { kOwn, kCudnn };

// One attention case. q, k and v are parts of one tensor if fused, otherwise separate tensors with
// padded rows.
struct Case {
  Dtype dtype = Dtype::kBf16;
  std::int64_t q_heads = 4, kv_heads = 2, head_size = 64;
  std::vector<AttentionRun> runs = {};
  bool fused = false;
  bool causal = true;
  std::int64_t window = -1;
  double softcap = 0, dropout = 0, scale = 0;  // 0: 1 / sqrt(head_size)
  std::int64_t head_offset = 0;
  std::int64_t v_head_size = 0;  // 0: head_size

  std::int64_t v_size() const { return v_head_size > 0 ? v_head_size : head_size; }
  std::int64_t q_rows() const {
    std::int64_t rows = 1;
    for (const AttentionRun& run : runs)
      rows = std::max<std::int64_t>(rows, run.q_begin + run.q_count);
    return rows + 2;
  }
  std::int64_t k_rows() const {
    std::int64_t rows = 1;
    for (const AttentionRun& run : runs)
      rows = std::max<std::int64_t>(rows, run.k_begin + run.k_count);
    return rows + 3;
  }
  std::string text() const {
    std::string out(name_of(dtype));
    auto add = [&](const char* name, auto value) {
      out += std::string(" ") + name + " " + std::to_string(value);
    };
    add("q heads", q_heads), add("kv heads", kv_heads), add("head size", head_size);
    add("v head size", v_size());
    add("fused", fused), add("causal", causal), add("window", window), add("softcap", softcap);
    add("dropout", dropout);
    for (const AttentionRun& run : runs) {
      out += " (" + std::to_string(run.q_begin) + "+" + std::to_string(run.q_count) + ", " +
             std::to_string(run.k_begin) + "+" + std::to_string(run.k_count) + ", offset " +
             std::to_string(run.offset) + ", key " + std::to_string(run.key_position) + ")";
    }
    return out;
  }
};

// Runs of whole sequences, one after the other.
inline std::vector<AttentionRun> sequences(const std::vector<int>& lengths) {
  std::vector<AttentionRun> runs;
  std::int32_t at = 0;
  for (int length : lengths) {
    runs.push_back({.q_begin = at, .q_count = length, .k_begin = at, .k_count = length});
    at += length;
  }
  return runs;
}

// Small random integers, a different sequence for each seed.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : seed_(seed) {}
  int below(int n) {
    return static_cast<int>(philox({++count_, 0, 0, 0}, seed_)[0] % static_cast<unsigned>(n));
  }
  template <class T>
  T one_of(std::initializer_list<T> values) {
    return *(values.begin() + below(static_cast<int>(values.size())));
  }

 private:
  std::uint64_t seed_;
  std::uint32_t count_ = 0;
};

// Runs with gaps between them, whose keys lie before, around or after the queries.
inline std::vector<AttentionRun> random_runs(Dice& dice) {
  std::vector<AttentionRun> runs;
  std::int32_t q = 0, k = 0;
  for (int i = dice.below(3); i >= 0; --i) {
    AttentionRun run;
    run.q_begin = q += dice.below(4);
    run.k_begin = k += dice.below(5);
    run.q_count = dice.one_of({1, 3, 17, 64, 65, 100, 128, 150});
    run.k_count = dice.one_of({1, 5, 31, 64, 66, 127, 200});
    run.offset = dice.one_of({0, run.k_count - run.q_count, -20, run.k_count - 3, 60});
    run.key_position = dice.below(9);
    q += run.q_count;
    k += run.k_count;
    runs.push_back(run);
  }
  return runs;
}

class CudaAttentionTest : public CudaRig {
 protected:
  // The tensors of a case on both sides.
  struct Tensors {
    Twin q, k, v, out, lse, dout, delta, dq, dk, dv, random_key, samples, positions;
    std::int64_t k_offset = 0, v_offset = 0;  // offsets in the fused tensor
  };

  Tensors make(const Case& c) {
    Tensors t;
    const std::int64_t q_columns = c.q_heads * c.head_size, k_columns = c.kv_heads * c.head_size;
    const std::int64_t v_columns = c.kv_heads * c.v_size(), out_columns = c.q_heads * c.v_size();
    const std::int64_t rows = c.q_rows();
    if (c.fused) {
      Shape shape{std::max(rows, c.k_rows()), q_columns + k_columns + v_columns};
      t.q = t.k = t.v = random(c.dtype, shape);
      t.dq = t.dk = t.dv = poisoned(c.dtype, shape);
      t.k_offset = q_columns;
      t.v_offset = q_columns + k_columns;
    } else {
      const std::int64_t pad = 8;
      Shape q_shape{rows, q_columns + pad}, k_shape{c.k_rows(), k_columns + pad};
      Shape v_shape{c.k_rows(), v_columns + 2 * pad};
      t.q = random(c.dtype, q_shape), t.dq = poisoned(c.dtype, q_shape);
      t.k = random(c.dtype, k_shape), t.dk = poisoned(c.dtype, k_shape);
      t.v = random(c.dtype, v_shape), t.dv = poisoned(c.dtype, v_shape);
    }
    t.out = poisoned(c.dtype, {rows, out_columns});
    t.dout = random(c.dtype, {rows, out_columns});
    t.lse = poisoned(Dtype::kF32, {rows, c.q_heads});
    t.delta = poisoned(Dtype::kF32, {rows, c.q_heads});
    std::vector<std::int32_t> samples, positions;
    for (std::int64_t i = 0; i < rows; ++i) {
      samples.push_back(static_cast<std::int32_t>(3 + i / 50));
      positions.push_back(static_cast<std::int32_t>(i * 7 % 1000));
    }
    t.random_key = words<std::int64_t>({0x123456789abcdef});
    t.samples = words(samples);
    t.positions = words(positions);
    return t;
  }

  static Tensor side(const Twin& twin, bool exact) { return exact ? twin.exact : twin.device; }

  AttentionShape shape(const Case& c, const Tensors& t, bool exact) {
    AttentionShape s;
    s.runs = c.runs;
    s.q_heads = c.q_heads, s.kv_heads = c.kv_heads, s.head_size = c.head_size;
    s.v_head_size = c.v_size();
    s.q_stride = t.q.device.shape()[1];
    s.k_stride = t.k.device.shape()[1];
    s.v_stride = t.v.device.shape()[1];
    s.dtype = exact ? Dtype::kF64 : c.dtype;
    s.rule = {.scale = c.scale > 0 ? c.scale : 1 / std::sqrt(static_cast<double>(c.head_size)),
              .softcap = c.softcap,
              .window = c.window,
              .causal = c.causal,
              .dropout = c.dropout};
    s.head_offset = c.head_offset;
    s.random = {reinterpret_cast<const std::uint64_t*>(side(t.random_key, exact).view().data),
                side(t.samples, exact).as<std::int32_t>(),
                side(t.positions, exact).as<std::int32_t>(), 5u << 16};
    return s;
  }
  AttentionForwardArgs forward_args(const Case& c, const Tensors& t, bool exact) {
    return {shape(c, t, exact),
            side(t.q, exact).view().data,
            side(t.k, exact).view().address(t.k_offset),
            side(t.v, exact).view().address(t.v_offset),
            side(t.out, exact),
            side(t.lse, exact)};
  }
  AttentionBackwardArgs backward_args(const Case& c, const Tensors& t, bool exact) {
    const AttentionForwardArgs at = forward_args(c, t, exact);
    return {at.shape,
            at.q,
            at.k,
            at.v,
            at.out,
            side(t.dout, exact),
            at.lse,
            side(t.delta, exact),
            side(t.dq, exact).view().data,
            side(t.dk, exact).view().address(t.k_offset),
            side(t.dv, exact).view().address(t.v_offset)};
  }

  // Runs in device memory.
  Tensor on_device(const std::vector<AttentionRun>& runs) {
    constexpr std::size_t kWords = sizeof(AttentionRun) / sizeof(std::int32_t);
    std::vector<std::int32_t> values(std::max<std::size_t>(1, runs.size() * kWords));
    if (!runs.empty()) std::memcpy(values.data(), runs.data(), runs.size() * sizeof(AttentionRun));
    return words(values).device;
  }
  static const AttentionRun* runs_of(const Tensor& device) {
    return static_cast<const AttentionRun*>(device.view().data);
  }

  bool forward(Path path, const Case& c, const Tensors& t) {
    const AttentionForwardArgs args = forward_args(c, t, false);
    if (path == Path::kCudnn) return cudnn_attention_forward(cuda_stream(), args);
    own_attention_forward(cuda_stream(), args);
    return true;
  }
  bool backward(Path path, const Case& c, const Tensors& t) {
    const AttentionBackwardArgs args = backward_args(c, t, false);
    if (path == Path::kCudnn) return cudnn_attention_backward(cuda_stream(), args);
    own_attention_backward(cuda_stream(), args);
    return true;
  }

  // The error is at most `tolerance` times the norm of the exact values, or times `least`, the
  // magnitude of terms that cancel. NaN must match on both sides.
  void expect_close(const Twin& twin, double tolerance, const char* what, double least = 0) {
    const std::vector<double> got = download(twin.device);
    const double* want = twin.exact.as<double>();
    double difference = 0, size = 0;
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      const bool same_kind =
          std::isnan(got[i]) == std::isnan(want[i]) && std::isinf(got[i]) == std::isinf(want[i]);
      wrong += same_kind ? 0 : 1;
      if (!std::isfinite(want[i]) || !same_kind) continue;
      difference += (got[i] - want[i]) * (got[i] - want[i]);
      size += want[i] * want[i];
    }
    EXPECT_EQ(wrong, 0u) << what << ": elements written that must not be, or the other way round";
    EXPECT_LE(std::sqrt(difference), tolerance * std::max(std::sqrt(size), least)) << what;
  }
  void check(Path path, const Case& c) {
    SCOPED_TRACE(c.text());
    const double tolerance = c.dtype == Dtype::kBf16 ? 1e-2 : c.dtype == Dtype::kF16 ? 2e-3 : 1e-5;
    const Tensors t = make(c);
    ASSERT_TRUE(forward(path, c, t)) << "forward is not served";
    cpu().attention.forward(cpu_stream(), forward_args(c, t, true));
    expect_close(t.out, tolerance, "out");
    expect_close(t.lse, 2e-5, "lse", 0.1 * std::sqrt(static_cast<double>(t.lse.exact.numel())));
    ASSERT_TRUE(backward(path, c, t)) << "backward is not served";
    cpu().attention.backward(cpu_stream(), backward_args(c, t, true));
    if (c.fused) return expect_close(t.dq, tolerance, "gradients");  // one tensor
    // A query that sees one key has zero gradient: only rounding is left of terms as large as dv
    // times scale * v.
    const double least = 0.2 * shape(c, t, true).rule.scale *
                         std::sqrt(static_cast<double>(c.head_size)) * norm(t.dv.exact);
    expect_close(t.dq, tolerance, "dq", least);
    expect_close(t.dk, tolerance, "dk", least);
    expect_close(t.dv, tolerance, "dv");
  }

 private:
  static double norm(const Tensor& exact) {
    double squares = 0;
    for (std::int64_t i = 0; i < exact.numel(); ++i) {
      const double x = exact.as<double>()[i];
      squares += std::isnan(x) ? 0 : x * x;
    }
    return std::sqrt(squares);
  }
};

}  // namespace bev::cuda_test
