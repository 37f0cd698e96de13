#include "kernels/attention.h"

#include <gtest/gtest.h>

#include "tests/backend_cpu/attention_reference.h"
#include "tests/backend_cpu/kernel_fixture.h"

namespace bev {
namespace {

using kernel_test::accumulate_dtype;
using kernel_test::AttentionResult;
using kernel_test::AttentionValues;
using kernel_test::Buffer;
using kernel_test::expect_near;
using kernel_test::kFloats;
using kernel_test::levels;
using kernel_test::random_buffer;

// For sums of some hundred products of values of magnitude 1.
double tolerance(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF64:
      return 1e-12;
    case Dtype::kF32:
      return 1e-5;
    case Dtype::kBf16:
      return 1.2e-2;
    default:
      return 2e-3;
  }
}

struct Case {
  const char* name;
  std::vector<AttentionRun> runs;
  std::int64_t heads, kv_heads, head_size;
  bool causal = true;
  std::int64_t window = -1;
  double softcap = 0, dropout = 0;
  std::int64_t v_head_size = 0;  // 0: head_size

  std::int64_t v_size() const { return v_head_size > 0 ? v_head_size : head_size; }
};

std::vector<Case> cases() {
  return {
      {"plain", {{0, 70, 0, 70}}, 2, 2, 64},
      {"full", {{1, 70, 2, 70}}, 2, 2, 48, false},
      {"documents, grouped", {{0, 33, 0, 33}, {33, 1, 33, 1}, {34, 97, 34, 97}}, 6, 2, 40},
      {"one kv head", {{0, 45, 0, 45}}, 5, 1, 17, false},
      {"one long run", {{0, 300, 0, 300}}, 4, 2, 16},
      {"one long run, full", {{0, 270, 0, 270}}, 1, 1, 12, false},
      {"window", {{0, 150, 0, 150}}, 2, 2, 80, true, 7},
      {"window of 0", {{0, 67, 0, 67}}, 1, 1, 5, true, 0},
      {"window, wide", {{0, 200, 0, 200}}, 1, 1, 8, true, 90},
      {"window, full", {{0, 150, 0, 150}}, 3, 1, 7, false, 5},
      {"softcap", {{0, 40, 0, 40}}, 2, 1, 96, true, 30, 2.5},
      {"softcap, full", {{0, 90, 0, 90}}, 1, 1, 11, false, -1, 1.0},
      {"cache, one query", {{0, 1, 0, 130, 129}, {1, 1, 130, 1}, {2, 1, 140, 64, 63}}, 4, 2, 128},
      {"cache, one query, odd", {{0, 1, 0, 75, 74}, {1, 1, 75, 20, 19}}, 3, 3, 33, true, 30, 4.0},
      {"cache, few queries", {{0, 3, 5, 100, 97}, {3, 9, 110, 70, 61}}, 4, 2, 128},
      {"cache, full", {{0, 3, 0, 100, 97}}, 4, 4, 20, false, 12},
      {"queries without keys",
       {{0, 10, 0, 4, -6}, {10, 80, 4, 6, -74}, {90, 2, 10, 0, -2}},
       2,
       1,
       24},
      {"few queries without keys", {{0, 3, 0, 2, -1}, {3, 1, 2, 0, -1}}, 1, 1, 24},
      {"keys without queries", {{0, 0, 0, 9, 9}, {0, 5, 9, 5}, {5, 0, 14, 0}}, 2, 2, 16},
      {"keys before the queries",
       {{0, 40, 0, 30, 50, 3}, {40, 70, 30, 90, 130, 7}},
       2,
       1,
       24,
       true,
       75},
      {"keys after the queries", {{0, 40, 0, 30, -20, 5}, {40, 9, 30, 20, -9, 1}}, 2, 2, 16},
      {"keys around, full", {{0, 40, 0, 90, -10, 2}, {40, 5, 90, 9, 30, 6}}, 1, 1, 8, false, 15},
      {"dropout, odd position",
       {{0, 61, 0, 61, 33, 5}, {61, 70, 61, 40, -3, 11}},
       4,
       2,
       32,
       true,
       -1,
       0,
       0.3},
      {"no runs", {}, 2, 2, 16},
      {"large heads", {{0, 66, 0, 66}}, 2, 1, 256},
      {"heads of one", {{0, 20, 0, 20}}, 3, 3, 1},
      {"dropout", {{0, 61, 0, 61}, {61, 90, 61, 90}}, 4, 2, 32, true, -1, 0, 0.3},
      {"dropout, full, softcap",
       {{0, 1, 0, 30, 29}, {1, 77, 30, 77}},
       2,
       2,
       9,
       false,
       40,
       3.0,
       0.1},
      {"small values", {{0, 70, 0, 70}, {70, 9, 70, 9}}, 4, 2, 24, true, -1, 0, 0, 13},
      {"large values", {{0, 90, 0, 90}}, 2, 2, 192, true, 40, 0, 0, 256},
      {"small values, dropout", {{0, 61, 0, 61}}, 2, 1, 17, false, -1, 3.0, 0.2, 3},
      {"cache, small values",
       {{0, 1, 0, 130, 129}, {1, 2, 130, 9, 7}},
       2,
       1,
       48,
       true,
       -1,
       0,
       0,
       20},
  };
}

// All tensors of a case in one dtype.
struct Problem {
  std::uint64_t random_key = 0x1234567890abcdefull;
  std::vector<std::int32_t> sample, position;
  std::int64_t q_rows = 1, k_rows = 1;
  AttentionShape shape;
  Buffer q = none(), k = none(), v = none(), dout = none();
  Buffer out = none(), lse = none(), delta = none(), dq = none(), dk = none(), dv = none();
  static Buffer none() { return Buffer(Dtype::kF32, {0}); }

  Problem(const Case& item, Dtype dtype) {
    for (const AttentionRun& run : item.runs) {
      q_rows = std::max<std::int64_t>(q_rows, run.q_begin + run.q_count + 1);
      k_rows = std::max<std::int64_t>(k_rows, run.k_begin + run.k_count + 1);
    }
    for (std::int64_t t = 0; t < q_rows; ++t) {
      sample.push_back(static_cast<std::int32_t>(5 + t / 50));
      position.push_back(static_cast<std::int32_t>(t % 50));
    }
    shape = {.runs = item.runs,
             .q_heads = item.heads,
             .kv_heads = item.kv_heads,
             .head_size = item.head_size,
             .v_head_size = item.v_size(),
             .q_stride = item.heads * item.head_size + 3,
             .k_stride = item.kv_heads * item.head_size + 5,
             .v_stride = item.kv_heads * item.v_size(),
             .dtype = dtype,
             .rule = {.scale = 1 / std::sqrt(static_cast<double>(item.head_size)),
                      .softcap = item.softcap,
                      .window = item.window,
                      .causal = item.causal,
                      .dropout = item.dropout},
             .random = {&random_key, sample.data(), position.data(), 77},
             .head_offset = 3};
    q = random_buffer(dtype, {q_rows, shape.q_stride}, 1);
    k = random_buffer(dtype, {k_rows, shape.k_stride}, 2);
    v = random_buffer(dtype, {k_rows, shape.v_stride}, 3);
    dout = random_buffer(dtype, {q_rows, item.heads * item.v_size()}, 4, 1);
    clear_results();
  }
  Problem(const Problem&) = delete;
  Problem& operator=(const Problem&) = delete;

  void clear_results() {
    const Dtype dtype = shape.dtype, statistics = accumulate_dtype(dtype);
    out = Buffer(dtype, dout.view().shape);
    lse = Buffer(statistics, {q_rows, shape.q_heads});
    delta = Buffer(statistics, {q_rows, shape.q_heads});
    dq = Buffer(dtype, q.view().shape);
    dk = Buffer(dtype, k.view().shape);
    dv = Buffer(dtype, v.view().shape);
  }
  void forward(CpuLevel level, ThreadPool& pool, const View& max_logits = {}) {
    cpu_kernels(level).attention.forward({.pool = &pool}, {.shape = shape,
                                                           .q = q.view().data,
                                                           .k = k.view().data,
                                                           .v = v.view().data,
                                                           .out = out.view(),
                                                           .lse = lse.view(),
                                                           .max_logits = max_logits});
  }
  // The largest visible score of each head, or `least`.
  std::vector<double> largest_scores(double least) {
    const AttentionValues in = {q.values(), k.values(), v.values(), dout.values()};
    std::vector<double> largest(static_cast<std::size_t>(shape.q_heads), least);
    for (const AttentionRun& run : shape.runs) {
      for (std::int64_t i = 0; i < run.q_count * shape.q_heads; ++i) {
        const std::int64_t head = i % shape.q_heads;
        double& most = largest[static_cast<std::size_t>(head)];
        for (double score : kernel_test::dense_row(shape, run, in, i / shape.q_heads, head).score) {
          most = std::max(most, score);
        }
      }
    }
    return largest;
  }
  void backward(CpuLevel level, ThreadPool& pool) {
    cpu_kernels(level).attention.backward(
        {.pool = &pool},
        {shape, q.view().data, k.view().data, v.view().data, out.view(), dout.view(), lse.view(),
         delta.view(), dq.view().data, dk.view().data, dv.view().data});
  }
  AttentionResult reference() {
    const AttentionValues in = {q.values(), k.values(), v.values(), dout.values()};
    return kernel_test::dense_attention(shape, in, q_rows);
  }
};

TEST(Attention, ForwardAndBackwardMatchTheDenseReference) {
  ThreadPool pool(2);
  for (const Case& item : cases()) {
    for (Dtype dtype : kFloats) {
      Problem problem(item, dtype);
      const AttentionResult expected = problem.reference();
      const double allowed = tolerance(dtype);
      for (CpuLevel level : levels()) {
        SCOPED_TRACE(testing::Message() << item.name << ", " << name_of(dtype) << ", level "
                                        << static_cast<int>(level));
        problem.clear_results();
        problem.forward(level, pool);
        problem.backward(level, pool);
        const double statistics = dtype == Dtype::kF64 ? 1e-12 : 1e-5;
        expect_near(problem.out.values(), expected.out, allowed);
        expect_near(problem.lse.values(), expected.lse, statistics);
        expect_near(problem.dq.values(), expected.dq, 4 * allowed);
        expect_near(problem.dk.values(), expected.dk, 4 * allowed);
        expect_near(problem.dv.values(), expected.dv, 4 * allowed);
        for (Buffer* buffer :
             {&problem.out, &problem.lse, &problem.delta, &problem.dq, &problem.dk, &problem.dv}) {
          EXPECT_TRUE(buffer->guards_intact());
        }
        if (HasFailure()) return;
      }
    }
  }
}

TEST(Attention, RaisesTheLargestLogits) {
  ThreadPool pool(2);
  for (const Case& item : cases()) {
    for (Dtype dtype : kFloats) {
      Problem problem(item, dtype);
      constexpr double kBefore = 0.125;  // of earlier calls
      const std::vector<double> expected = problem.largest_scores(kBefore);
      for (CpuLevel level : levels()) {
        SCOPED_TRACE(testing::Message() << item.name << ", " << name_of(dtype));
        Buffer largest(accumulate_dtype(dtype), {problem.shape.q_heads},
                       std::vector<double>(expected.size(), kBefore));
        problem.forward(level, pool, largest.view());
        expect_near(largest.values(), expected, dtype == Dtype::kF64 ? 1e-12 : 1e-5);
        EXPECT_TRUE(largest.guards_intact());
        if (HasFailure()) return;
      }
    }
  }
}

// Attention over two parts of the keys, merged, equals attention over all; the gradients of the
// parts add up. In the second case one part is fully masked.
TEST(Attention, PartsOfTheKeysMergeToTheWhole) {
  ThreadPool pool(2);
  for (const Case& item : {Case{"plain", {{0, 70, 0, 70}}, 4, 2, 24, true, -1, 0, 0.2},
                           Case{"window", {{0, 50, 0, 90, 40}}, 2, 2, 16, true, 9}}) {
    for (Dtype dtype : kFloats) {
      SCOPED_TRACE(testing::Message() << item.name << ", " << name_of(dtype));
      Problem whole(item, dtype), part(item, dtype);
      whole.forward(best_cpu_level(), pool);
      whole.backward(best_cpu_level(), pool);
      const Dtype wide = accumulate_dtype(dtype);
      Buffer out(wide, whole.out.view().shape), lse(wide, whole.lse.view().shape);
      const Kernels& kernels = cpu_kernels(best_cpu_level());
      kernels.fill({.pool = &pool}, out.view(), 0);
      kernels.fill({.pool = &pool}, lse.view(), -std::numeric_limits<double>::infinity());
      const AttentionRun run = item.runs[0];
      constexpr std::int32_t kCut = 23;
      std::vector<AttentionRun> first = {{run.q_begin, run.q_count, 0, kCut, run.offset, 0}};
      std::vector<AttentionRun> second = {
          {run.q_begin, run.q_count, kCut, run.k_count - kCut, run.offset - kCut, kCut}};
      for (const auto& runs : {first, second}) {
        part.shape.runs = runs;
        part.forward(best_cpu_level(), pool);
        kernels.attention.merge({.pool = &pool}, {.shape = part.shape,
                                                  .out = out.view(),
                                                  .lse = lse.view(),
                                                  .part_out = part.out.view(),
                                                  .part_lse = part.lse.view()});
      }
      const auto rows = static_cast<std::size_t>(run.q_count * item.heads);
      auto head = [](std::vector<double> x, std::size_t count) {
        x.resize(count);
        return x;
      };
      const std::size_t elements = rows * static_cast<std::size_t>(item.v_size());
      expect_near(head(out.values(), elements), head(whole.out.values(), elements),
                  tolerance(dtype));
      expect_near(head(lse.values(), rows), head(whole.lse.values(), rows), tolerance(dtype));

      part.out = whole.out;
      part.lse = whole.lse;
      std::vector<double> dq(static_cast<std::size_t>(run.q_count * part.shape.q_stride), 0.0);
      for (const auto& runs : {first, second}) {
        part.shape.runs = runs;
        part.backward(best_cpu_level(), pool);
        const std::vector<double> now = part.dq.values();
        for (std::size_t i = 0; i < dq.size(); ++i) dq[i] += now[i];
      }
      expect_near(dq, head(whole.dq.values(), dq.size()), 4 * tolerance(dtype));
      expect_near(part.dk.values(), whole.dk.values(), 4 * tolerance(dtype));
      expect_near(part.dv.values(), whole.dv.values(), 4 * tolerance(dtype));
    }
  }
}

TEST(Attention, BackwardMatchesFiniteDifferences) {
  ThreadPool pool(1);
  const CpuLevel level = best_cpu_level();
  constexpr double kStep = 1e-5;
  for (const Case& item : cases()) {
    SCOPED_TRACE(item.name);
    Problem problem(item, Dtype::kF64);
    problem.forward(level, pool);
    problem.backward(level, pool);
    const auto loss = [&] {
      problem.forward(level, pool);
      const std::vector<double> out = problem.out.values(), dout = problem.dout.values();
      double sum = 0;
      for (std::size_t i = 0; i < out.size(); ++i) {
        if (!std::isnan(out[i])) sum += out[i] * dout[i];
      }
      return sum;
    };
    for (auto [buffer, gradient] :
         {std::pair{&problem.q, &problem.dq}, std::pair{&problem.k, &problem.dk},
          std::pair{&problem.v, &problem.dv}}) {
      const std::vector<double> analytic = gradient->values();
      auto* data = static_cast<double*>(buffer->view().data);
      const std::size_t step = analytic.size() / 12 + 1;
      for (std::size_t i = step / 2; i < analytic.size(); i += step) {
        if (std::isnan(analytic[i])) continue;
        const double old = data[i];
        data[i] = old + kStep;
        const double above = loss();
        data[i] = old - kStep;
        const double below = loss();
        data[i] = old;
        EXPECT_NEAR(analytic[i], (above - below) / (2 * kStep), 1e-7) << "element " << i;
      }
    }
  }
}

TEST(Attention, AnyNumberOfThreadsGivesTheSameBits) {
  for (const Case& item : cases()) {
    for (Dtype dtype : kFloats) {
      SCOPED_TRACE(item.name);
      Problem problem(item, dtype);
      std::vector<std::string> first;
      for (int threads : {1, 2, 3}) {
        ThreadPool pool(threads);
        problem.clear_results();
        problem.forward(best_cpu_level(), pool);
        problem.backward(best_cpu_level(), pool);
        const std::vector<std::string> now = {problem.out.bits(), problem.lse.bits(),
                                              problem.dq.bits(), problem.dk.bits(),
                                              problem.dv.bits()};
        if (threads == 1) first = now;
        EXPECT_TRUE(first == now) << threads << " threads, " << name_of(dtype);
      }
    }
  }
}

// q, k and v inside one fused row, as in training, give bitwise the result of separate tensors.
TEST(Attention, ReadsAndWritesFusedRows) {
  ThreadPool pool(2);
  const Case item = {"fused", {{0, 90, 0, 90}}, 4, 2, 32};
  Problem problem(item, Dtype::kF32);
  problem.forward(best_cpu_level(), pool);
  problem.backward(best_cpu_level(), pool);
  const std::int64_t q_columns = 4 * 32, k_columns = 2 * 32, row = q_columns + 2 * k_columns;
  Buffer fused(Dtype::kF32, {90, row}), gradient(Dtype::kF32, {90, row});
  const auto copy = [&](Buffer& from, std::int64_t stride, std::int64_t columns,
                        std::int64_t offset) {
    for (std::int64_t t = 0; t < 90; ++t) {
      std::copy_n(static_cast<const float*>(from.view().data) + t * stride, columns,
                  static_cast<float*>(fused.view().data) + t * row + offset);
    }
  };
  copy(problem.q, problem.shape.q_stride, q_columns, 0);
  copy(problem.k, problem.shape.k_stride, k_columns, q_columns);
  copy(problem.v, problem.shape.v_stride, k_columns, q_columns + k_columns);
  AttentionShape shape = problem.shape;
  shape.q_stride = shape.k_stride = shape.v_stride = row;
  auto* x = static_cast<float*>(fused.view().data);
  auto* dx = static_cast<float*>(gradient.view().data);
  const std::string out = problem.out.bits();
  const AttentionKernels& kernels = cpu_kernels().attention;
  kernels.forward({.pool = &pool}, {.shape = shape,
                                    .q = x,
                                    .k = x + q_columns,
                                    .v = x + q_columns + k_columns,
                                    .out = problem.out.view(),
                                    .lse = problem.lse.view()});
  kernels.backward({.pool = &pool}, {.shape = shape,
                                     .q = x,
                                     .k = x + q_columns,
                                     .v = x + q_columns + k_columns,
                                     .out = problem.out.view(),
                                     .dout = problem.dout.view(),
                                     .lse = problem.lse.view(),
                                     .delta = problem.delta.view(),
                                     .dq = dx,
                                     .dk = dx + q_columns,
                                     .dv = dx + q_columns + k_columns});
  EXPECT_TRUE(out == problem.out.bits());
  copy(problem.dq, problem.shape.q_stride, q_columns, 0);
  copy(problem.dk, problem.shape.k_stride, k_columns, q_columns);
  copy(problem.dv, problem.shape.v_stride, k_columns, q_columns + k_columns);
  EXPECT_TRUE(fused.bits() == gradient.bits());
}

TEST(Attention, NanReachesTheOutput) {
  ThreadPool pool(1);
  const Case item = {"nan", {{0, 40, 0, 40}}, 1, 1, 8};
  for (CpuLevel level : levels()) {
    Problem problem(item, Dtype::kF32);
    static_cast<float*>(problem.q.view().data)[20 * problem.shape.q_stride] = std::nanf("");
    problem.forward(level, pool);
    const std::vector<double> out = problem.out.values();
    EXPECT_FALSE(std::isnan(out[19 * 8]));
    EXPECT_TRUE(std::isnan(out[20 * 8]));
    EXPECT_FALSE(std::isnan(out[21 * 8]));
  }
}

// Scores far apart: exp must not overflow, and a later, larger score rescales all earlier ones.
TEST(Attention, LargeScoresStayFinite) {
  ThreadPool pool(1);
  const Case item = {"large", {{0, 130, 0, 130}}, 1, 1, 16, false};
  for (Dtype dtype : {Dtype::kF64, Dtype::kF32}) {
    for (CpuLevel level : levels()) {
      Problem problem(item, dtype);
      problem.shape.rule.scale = 100;
      const AttentionResult expected = problem.reference();
      problem.forward(level, pool);
      expect_near(problem.out.values(), expected.out, dtype == Dtype::kF64 ? 1e-9 : 1e-3);
    }
  }
}

// MLA decoding: latents are keys and, in part, values; heads are wider than any backward supports.
TEST(Attention, ForwardServesWideHeadsThatShareRows) {
  ThreadPool pool(2);
  const Case item = {
      "latents", {{0, 3, 2, 90, 87}, {3, 1, 95, 5, 4}, {4, 40, 100, 40}}, 6, 1, 576, true, -1, 0, 0,
      512};
  for (Dtype dtype : {Dtype::kF64, Dtype::kF32, Dtype::kBf16}) {
    for (CpuLevel level : levels()) {
      Problem problem(item, dtype);
      problem.shape.v_stride = problem.shape.k_stride;
      problem.v = problem.k;
      problem.clear_results();
      const AttentionResult expected = problem.reference();
      problem.forward(level, pool);
      expect_near(problem.out.values(), expected.out, tolerance(dtype));
      EXPECT_THROW(problem.backward(level, pool), Error);
    }
  }
}

TEST(AttentionSinks, JoinTheSumOnce) {
  ThreadPool pool(2);
  const Case item = {"sinks", {{0, 20, 0, 20}}, 3, 3, 8};
  const std::vector<double> logits = {0.5, -2, 3};
  for (Dtype dtype : {Dtype::kF64, Dtype::kF32}) {
    for (CpuLevel level : levels()) {
      Problem problem(item, dtype);
      const Stream stream{.pool = &pool};
      const AttentionKernels& kernels = cpu_kernels(level).attention;
      problem.forward(level, pool);
      const std::vector<double> lse = problem.lse.values(), out = problem.out.values();
      Buffer sinks(dtype, {3}, logits);
      kernels.add_sinks(stream, {sinks.view(), problem.out.view(), problem.lse.view()});
      Buffer terms = random_buffer(accumulate_dtype(dtype), {21, 5}, 10);
      const std::vector<double> before = terms.values();
      kernels.sink_terms(stream, {.sinks = sinks.view(),
                                  .out = problem.out.view(),
                                  .dout = problem.dout.view(),
                                  .lse = problem.lse.view(),
                                  .terms = terms.view(),
                                  .first = 1});
      const std::vector<double> with = problem.lse.values(), scaled = problem.out.values();
      const std::vector<double> dout = problem.dout.values(), got = terms.values();
      for (std::size_t i = 0; i < 60; ++i) {
        const double sum = std::exp(lse[i]) + std::exp(logits[i % 3]);
        EXPECT_NEAR(with[i], std::log(sum), 1e-6);
        double delta = 0;
        for (std::size_t d = 8 * i; d < 8 * i + 8; ++d) {
          EXPECT_NEAR(scaled[d], out[d] * std::exp(lse[i]) / sum, 1e-6);
          delta += scaled[d] * dout[d];
        }
        EXPECT_NEAR(got[i / 3 * 5 + 1 + i % 3], -std::exp(logits[i % 3]) / sum * delta, 1e-5);
      }
      EXPECT_EQ(got[0], before[0]);  // belongs to another head
      EXPECT_EQ(got[4], before[4]);
    }
  }
}

TEST(Attention, RefusesShapesItCannotCompute) {
  ThreadPool pool(1);
  const Case item = {"bad", {{0, 4, 0, 4}}, 2, 2, 8};
  Problem problem(item, Dtype::kF32);
  problem.shape.head_size = 1025;
  EXPECT_THROW(problem.forward(best_cpu_level(), pool), Error);
  problem.shape.head_size = 257;
  EXPECT_THROW(problem.backward(best_cpu_level(), pool), Error);
  problem.shape.v_head_size = 257;
  problem.shape.head_size = 8;
  EXPECT_THROW(problem.backward(best_cpu_level(), pool), Error);
  problem.shape.v_head_size = 8;
  problem.shape.head_size = 8;
  problem.shape.q_heads = 3;
  EXPECT_THROW(problem.backward(best_cpu_level(), pool), Error);
}

}  // namespace
}  // namespace bev
