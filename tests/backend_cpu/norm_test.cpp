#include "kernels/norm.h"

#include <gtest/gtest.h>

#include "tests/backend_cpu/kernel_fixture.h"

namespace bev {
namespace {

using kernel_test::accumulate_dtype;
using kernel_test::Buffer;
using kernel_test::epsilon_of;
using kernel_test::expect_near;
using kernel_test::kFloats;
using kernel_test::on_every_level;
using kernel_test::random_buffer;

using Values = std::vector<double>;

// Output and gradients of one row.
struct RowResult {
  double mean = 0, rstd = 0;
  Values y, dx, dweight;
};

RowResult norm_row(const Values& s, const Values& weight, const Values& bias, const Values& dy,
                   bool centred, double epsilon, double offset) {
  const auto n = static_cast<double>(s.size());
  RowResult row;
  double squares = 0, along = 0, shift = 0;
  if (centred) {
    for (double x : s) row.mean += x / n;
  }
  for (double x : s) squares += (x - row.mean) * (x - row.mean) / n;
  row.rstd = 1 / std::sqrt(squares + epsilon);
  for (std::size_t i = 0; i < s.size(); ++i) {
    const double unit = (s[i] - row.mean) * row.rstd;
    row.y.push_back(unit * (offset + weight[i]) + (bias.empty() ? 0 : bias[i]));
    row.dweight.push_back(dy[i] * unit);
    along += dy[i] * (offset + weight[i]) * unit / n;
    if (centred) shift += dy[i] * (offset + weight[i]) / n;
  }
  for (std::size_t i = 0; i < s.size(); ++i) {
    const double unit = (s[i] - row.mean) * row.rstd;
    row.dx.push_back(row.rstd * (dy[i] * (offset + weight[i]) - shift - unit * along));
  }
  return row;
}

Values slice(const Values& x, std::size_t begin, std::size_t count) {
  return {x.begin() + static_cast<std::ptrdiff_t>(begin),
          x.begin() + static_cast<std::ptrdiff_t>(begin + count)};
}

void append(Values& to, const Values& from) { to.insert(to.end(), from.begin(), from.end()); }

struct Case {
  std::int64_t rows, columns;
  bool centred = false, residual = false, bias = false;
  double offset = 0;
};

const std::vector<Case> kCases = {{1, 1},
                                  {3, 64},
                                  {70, 65, true, true, true},
                                  {5, 768, true, false, true},
                                  {150, 129, false, true, false, 1},
                                  {2, 1000, true, true, false},
                                  {0, 16, true, false, true},
                                  {0, 33}};

// All tensors of a case in one dtype, and the expected results.
struct Problem {
  Buffer x, residual, weight, bias, dy, dsum, old_dweight, old_dbias;
  Values s, y, mean, rstd, dx, dx_with_sum, dweight, dbias;

  Problem(const Case& item, Dtype dtype, double beta)
      : x(random_buffer(dtype, {item.rows, item.columns}, 1, 3)),
        residual(random_buffer(dtype, {item.rows, item.columns}, 2, 3)),
        weight(random_buffer(dtype, {item.columns}, 3)),
        bias(random_buffer(dtype, {item.columns}, 4)),
        dy(random_buffer(dtype, {item.rows, item.columns}, 5)),
        dsum(random_buffer(dtype, {item.rows, item.columns}, 6)),
        old_dweight(random_buffer(accumulate_dtype(dtype), {item.columns}, 7)),
        old_dbias(random_buffer(accumulate_dtype(dtype), {item.columns}, 8)) {
    s = x.values();
    const Values added = residual.values();
    if (item.residual) {
      for (std::size_t i = 0; i < s.size(); ++i) s[i] += added[i];
      s = Buffer(dtype, {item.rows, item.columns}, s).values();  // rounded like the stored sum
    }
    dweight = old_dweight.values(), dbias = old_dbias.values();
    for (double& value : dweight) value *= beta;
    for (double& value : dbias) value *= beta;
    const auto columns = static_cast<std::size_t>(item.columns);
    const Values dys = dy.values(), dsums = dsum.values();
    for (std::size_t at = 0; at < s.size(); at += columns) {
      const Values row_dy = slice(dys, at, columns);
      const RowResult row =
          norm_row(slice(s, at, columns), weight.values(), item.bias ? bias.values() : Values{},
                   row_dy, item.centred, 1e-5, item.offset);
      append(y, row.y);
      append(dx, row.dx);
      mean.push_back(row.mean);
      rstd.push_back(row.rstd);
      for (std::size_t i = 0; i < columns; ++i) {
        dweight[i] += row.dweight[i];
        dbias[i] += row_dy[i];
      }
    }
    for (std::size_t i = 0; i < dx.size(); ++i) dx_with_sum.push_back(dx[i] + dsums[i]);
  }
};

double sum_tolerance(Dtype dtype) { return dtype == Dtype::kF64 ? 1e-12 : 2e-5; }

TEST(Norm, ForwardMatchesTheDefinition) {
  for (const Case& item : kCases) {
    for (Dtype dtype : kFloats) {
      SCOPED_TRACE(testing::Message()
                   << item.rows << " x " << item.columns << ", " << name_of(dtype));
      const Dtype statistics = accumulate_dtype(dtype);
      Problem problem(item, dtype, 0);
      on_every_level([&](const Kernels& kernels, const Stream& stream) {
        Buffer sum(dtype, {item.rows, item.columns}), y(dtype, {item.rows, item.columns});
        Buffer mean(statistics, {item.rows}), rstd(statistics, {item.rows});
        kernels.norm.forward(stream, {.x = problem.x.view(),
                                      .residual = item.residual ? problem.residual.view() : View{},
                                      .sum = item.residual ? sum.view() : View{},
                                      .y = y.view(),
                                      .weight = problem.weight.view(),
                                      .bias = item.bias ? problem.bias.view() : View{},
                                      .mean = item.centred ? mean.view() : View{},
                                      .rstd = rstd.view(),
                                      .epsilon = 1e-5,
                                      .offset = item.offset});
        if (item.residual) expect_near(sum.values(), problem.s, 0);
        expect_near(y.values(), problem.y, 8 * epsilon_of(dtype) + 1e-14);
        if (item.centred) expect_near(mean.values(), problem.mean, 8 * epsilon_of(statistics));
        expect_near(rstd.values(), problem.rstd, 8 * epsilon_of(statistics));
        EXPECT_TRUE(y.guards_intact() && sum.guards_intact() && rstd.guards_intact());
        return y.bits() + rstd.bits();
      });
    }
  }
}

// An f32 residual stream in a model of 16 bits: what an f32 model computes from the same numbers,
// and y is rounded once.
TEST(Norm, ForwardReadsAnF32Stream) {
  const Case item{70, 65, true, true, true};
  const Shape shape{item.rows, item.columns};
  for (Dtype dtype : {Dtype::kBf16, Dtype::kF16}) {
    for (bool with_residual : {true, false}) {
      Problem narrow(item, dtype, 0);
      Buffer stream = random_buffer(Dtype::kF32, shape, 2, 3);
      auto run = [&](const Kernels& kernels, const Stream& on, Dtype of) {
        Buffer x(with_residual ? of : Dtype::kF32, shape,
                 with_residual ? narrow.x.values() : stream.values());
        Buffer weight(of, {item.columns}, narrow.weight.values());
        Buffer bias(of, {item.columns}, narrow.bias.values());
        Buffer sum(Dtype::kF32, shape), y(of, shape);
        Buffer mean(Dtype::kF32, {item.rows}), rstd(Dtype::kF32, {item.rows});
        kernels.norm.forward(on, {.x = x.view(),
                                  .residual = with_residual ? stream.view() : View{},
                                  .sum = with_residual ? sum.view() : View{},
                                  .y = y.view(),
                                  .weight = weight.view(),
                                  .bias = bias.view(),
                                  .mean = mean.view(),
                                  .rstd = rstd.view()});
        EXPECT_TRUE(y.guards_intact() && sum.guards_intact());
        return std::tuple(sum.bits(), rstd.values(), y.values());
      };
      on_every_level([&](const Kernels& kernels, const Stream& on) {
        const auto [sum, rstd, y] = run(kernels, on, dtype);
        const auto [wide_sum, wide_rstd, wide_y] = run(kernels, on, Dtype::kF32);
        EXPECT_TRUE(sum == wide_sum);
        expect_near(rstd, wide_rstd, 1e-6);
        expect_near(y, wide_y, 2 * epsilon_of(dtype));
        return sum + Buffer(dtype, shape, y).bits();
      });
    }
  }
}

TEST(Norm, BackwardOfAnF32StreamIsThatOfF32) {
  const Case item{70, 65, true, true, true};
  const Shape shape{item.rows, item.columns};
  Problem narrow(item, Dtype::kBf16, 0);
  Buffer s = random_buffer(Dtype::kF32, shape, 2, 3), dsum = random_buffer(Dtype::kF32, shape, 6);
  Buffer mean(Dtype::kF32, {item.rows}, narrow.mean), rstd(Dtype::kF32, {item.rows}, narrow.rstd);
  auto run = [&](const Kernels& kernels, const Stream& on, Dtype of) {
    Buffer dy(of, shape, narrow.dy.values()), weight(of, {item.columns}, narrow.weight.values());
    Buffer dx(Dtype::kF32, shape, dsum.values());  // in place
    Buffer dweight(Dtype::kF32, {item.columns}), dbias(Dtype::kF32, {item.columns});
    kernels.norm.backward(on, {.dy = dy.view(),
                               .s = s.view(),
                               .dsum = dx.view(),
                               .weight = weight.view(),
                               .mean = mean.view(),
                               .rstd = rstd.view(),
                               .dx = dx.view(),
                               .dweight = dweight.view(),
                               .dbias = dbias.view()});
    Values all = dx.values();
    append(all, dweight.values());
    append(all, dbias.values());
    return all;
  };
  on_every_level([&](const Kernels& kernels, const Stream& on) {
    const Values mixed = run(kernels, on, Dtype::kBf16);
    expect_near(mixed, run(kernels, on, Dtype::kF32), 1e-5);
    return Buffer(Dtype::kF64, {std::ssize(mixed)}, mixed).bits();
  });
}

// bf16 gradients are the f32 gradients, rounded once.
TEST(Norm, GradientsOfWeightsMayBeBf16) {
  const Case item{70, 65, true, true, true};
  Problem problem(item, Dtype::kBf16, 0.5);
  Buffer s(Dtype::kBf16, {item.rows, item.columns}, problem.s);
  Buffer mean(Dtype::kF32, {item.rows}, problem.mean), rstd(Dtype::kF32, {item.rows}, problem.rstd);
  Buffer start = random_buffer(Dtype::kBf16, {item.columns}, 7);
  for (double beta : {0.0, 0.5}) {
    on_every_level([&](const Kernels& kernels, const Stream& stream) {
      std::vector<Values> results;
      for (Dtype dtype : {Dtype::kF32, Dtype::kBf16}) {
        Buffer dx(Dtype::kBf16, {item.rows, item.columns});
        Buffer dweight(dtype, {item.columns}), dbias(dtype, {item.columns});
        if (beta != 0) dweight = dbias = Buffer(dtype, {item.columns}, start.values());
        kernels.norm.backward(stream, {.dy = problem.dy.view(),
                                       .s = s.view(),
                                       .dsum = {},
                                       .weight = problem.weight.view(),
                                       .mean = mean.view(),
                                       .rstd = rstd.view(),
                                       .dx = dx.view(),
                                       .dweight = dweight.view(),
                                       .dbias = dbias.view(),
                                       .beta = beta});
        EXPECT_TRUE(dweight.guards_intact() && dbias.guards_intact());
        results.push_back(dweight.values());
        append(results.back(), dbias.values());
      }
      const std::int64_t count = 2 * item.columns;
      expect_near(results[1], Buffer(Dtype::kBf16, {count}, results[0]).values(), 0);
      return std::string();
    });
  }
}

enum class Alias { kNone, kDsum, kDy };

std::string run_backward(const Kernels& kernels, const Stream& stream, const Case& item,
                         Problem& problem, Alias alias, double beta) {
  const Dtype dtype = problem.x.view().dtype, statistics = accumulate_dtype(dtype);
  Buffer s(dtype, {item.rows, item.columns}, problem.s);
  Buffer mean(statistics, {item.rows}, problem.mean), rstd(statistics, {item.rows}, problem.rstd);
  Buffer dy = problem.dy, dsum = problem.dsum, own(dtype, {item.rows, item.columns});
  Buffer dweight = beta == 0 ? Buffer(statistics, {item.columns}) : problem.old_dweight;
  Buffer dbias = beta == 0 ? Buffer(statistics, {item.columns}) : problem.old_dbias;
  Buffer& dx = alias == Alias::kNone ? own : alias == Alias::kDsum ? dsum : dy;
  kernels.norm.backward(stream, {.dy = dy.view(),
                                 .s = s.view(),
                                 .dsum = alias == Alias::kNone ? View{} : dsum.view(),
                                 .weight = problem.weight.view(),
                                 .mean = item.centred ? mean.view() : View{},
                                 .rstd = rstd.view(),
                                 .dx = dx.view(),
                                 .dweight = dweight.view(),
                                 .dbias = item.bias ? dbias.view() : View{},
                                 .beta = beta,
                                 .offset = item.offset});
  expect_near(dx.values(), alias == Alias::kNone ? problem.dx : problem.dx_with_sum,
              8 * epsilon_of(dtype) + 1e-12);
  expect_near(dweight.values(), problem.dweight, sum_tolerance(dtype));
  if (item.bias) expect_near(dbias.values(), problem.dbias, sum_tolerance(dtype));
  EXPECT_TRUE(dx.guards_intact() && dweight.guards_intact() && dbias.guards_intact());
  return dx.bits() + dweight.bits();
}

TEST(Norm, BackwardMatchesTheDefinition) {
  for (const Case& item : kCases) {
    for (Dtype dtype : kFloats) {
      for (double beta : {0.0, 1.0, 0.5}) {
        Problem problem(item, dtype, beta);
        for (Alias alias : {Alias::kNone, Alias::kDsum, Alias::kDy}) {
          SCOPED_TRACE(testing::Message()
                       << item.rows << " x " << item.columns << ", " << name_of(dtype) << ", beta "
                       << beta << ", alias " << static_cast<int>(alias));
          on_every_level([&](const Kernels& kernels, const Stream& stream) {
            return run_backward(kernels, stream, item, problem, alias, beta);
          });
        }
      }
    }
  }
}

TEST(Norm, BackwardMatchesFiniteDifferences) {
  constexpr double kStep = 1e-5;
  for (const Case& item : {Case{4, 37, true, false, true}, Case{3, 70, false, false, false, 1}}) {
    Problem problem(item, Dtype::kF64, 0);
    ThreadPool pool(1);
    const Stream stream{.pool = &pool};
    const Kernels& kernels = cpu_kernels();
    Buffer mean(Dtype::kF64, {item.rows}), rstd(Dtype::kF64, {item.rows});
    const View none;
    const auto loss = [&] {
      Buffer y(Dtype::kF64, {item.rows, item.columns});
      kernels.norm.forward(stream, {.x = problem.x.view(),
                                    .residual = none,
                                    .sum = none,
                                    .y = y.view(),
                                    .weight = problem.weight.view(),
                                    .bias = item.bias ? problem.bias.view() : none,
                                    .mean = item.centred ? mean.view() : none,
                                    .rstd = rstd.view(),
                                    .offset = item.offset});
      const Values values = y.values(), dy = problem.dy.values();
      double sum = 0;
      for (std::size_t i = 0; i < values.size(); ++i) sum += values[i] * dy[i];
      return sum;
    };
    loss();
    Buffer dx(Dtype::kF64, {item.rows, item.columns}), dweight(Dtype::kF64, {item.columns}),
        dbias(Dtype::kF64, {item.columns});
    kernels.norm.backward(stream, {.dy = problem.dy.view(),
                                   .s = problem.x.view(),
                                   .dsum = none,
                                   .weight = problem.weight.view(),
                                   .mean = item.centred ? mean.view() : none,
                                   .rstd = rstd.view(),
                                   .dx = dx.view(),
                                   .dweight = dweight.view(),
                                   .dbias = item.bias ? dbias.view() : none,
                                   .offset = item.offset});
    std::vector<std::pair<Buffer*, Buffer*>> pairs = {{&problem.x, &dx},
                                                      {&problem.weight, &dweight}};
    if (item.bias) pairs.emplace_back(&problem.bias, &dbias);
    for (auto [input, gradient] : pairs) {
      const Values old = input->values(), analytic = gradient->values();
      for (std::size_t i = 0; i < old.size(); i += 5) {
        input->set(i, old[i] + kStep);
        const double above = loss();
        input->set(i, old[i] - kStep);
        const double below = loss();
        input->set(i, old[i]);
        EXPECT_NEAR(analytic[i], (above - below) / (2 * kStep), 1e-8) << "element " << i;
      }
    }
  }
}

struct HeadCase {
  std::int64_t rows, q_heads, kv_heads, head_size;
  double offset = 0;
};

TEST(HeadNorm, MatchesTheDefinition) {
  for (const HeadCase& item : {HeadCase{7, 6, 2, 64}, HeadCase{130, 3, 1, 33, 1},
                               HeadCase{0, 2, 2, 8}, HeadCase{2, 1, 1, 1}}) {
    const std::int64_t normed = item.q_heads + item.kv_heads, heads = normed + item.kv_heads;
    const std::int64_t size = item.head_size, row = heads * size;
    for (Dtype dtype : kFloats) {
      SCOPED_TRACE(testing::Message() << item.rows << " rows of " << row << ", " << name_of(dtype));
      const Dtype statistics = accumulate_dtype(dtype);
      Buffer x = random_buffer(dtype, {item.rows, row}, 1, 3);
      Buffer dy = random_buffer(dtype, {item.rows, row}, 2);
      Buffer q_weight = random_buffer(dtype, {size}, 3), k_weight = random_buffer(dtype, {size}, 4);
      Buffer old_dk = random_buffer(statistics, {size}, 5);
      Values y = x.values(), dx = dy.values(), rstd, dq_weight(static_cast<std::size_t>(size));
      Values dk_weight = old_dk.values();
      const Values xs = x.values(), dys = dy.values();
      for (std::int64_t t = 0; t < item.rows; ++t) {
        for (std::int64_t h = 0; h < normed; ++h) {
          const auto at = static_cast<std::size_t>(t * row + h * size);
          const auto count = static_cast<std::size_t>(size);
          const bool is_q = h < item.q_heads;
          const RowResult result =
              norm_row(slice(xs, at, count), (is_q ? q_weight : k_weight).values(), {},
                       slice(dys, at, count), false, 1e-6, item.offset);
          std::copy(result.y.begin(), result.y.end(), y.begin() + static_cast<std::ptrdiff_t>(at));
          std::copy(result.dx.begin(), result.dx.end(),
                    dx.begin() + static_cast<std::ptrdiff_t>(at));
          rstd.push_back(result.rstd);
          Values& target = is_q ? dq_weight : dk_weight;
          for (std::size_t i = 0; i < count; ++i) target[i] += result.dweight[i];
        }
      }
      on_every_level([&](const Kernels& kernels, const Stream& stream) {
        Buffer out(dtype, {item.rows, row}), stats(statistics, {item.rows, normed});
        Buffer grad = dy, grad_q(statistics, {size}), grad_k = old_dk;
        kernels.norm.head_forward(stream, {.x = x.view(),
                                           .y = out.view(),
                                           .q_weight = q_weight.view(),
                                           .k_weight = k_weight.view(),
                                           .rstd = stats.view(),
                                           .q_heads = item.q_heads,
                                           .kv_heads = item.kv_heads,
                                           .head_size = size,
                                           .offset = item.offset});
        // dx aliases dy here.
        kernels.norm.head_backward(stream, {.dy = grad.view(),
                                            .x = x.view(),
                                            .dx = grad.view(),
                                            .q_weight = q_weight.view(),
                                            .k_weight = k_weight.view(),
                                            .rstd = stats.view(),
                                            .dq_weight = grad_q.view(),
                                            .dk_weight = grad_k.view(),
                                            .k_beta = 1,
                                            .q_heads = item.q_heads,
                                            .kv_heads = item.kv_heads,
                                            .head_size = size,
                                            .offset = item.offset});
        expect_near(out.values(), y, 8 * epsilon_of(dtype) + 1e-14);
        expect_near(stats.values(), rstd, 8 * epsilon_of(statistics));
        expect_near(grad.values(), dx, 32 * epsilon_of(dtype));
        expect_near(grad_q.values(), dq_weight, sum_tolerance(dtype));
        expect_near(grad_k.values(), dk_weight, sum_tolerance(dtype));
        EXPECT_TRUE(out.guards_intact() && grad.guards_intact() && grad_q.guards_intact());
        return out.bits() + grad.bits() + grad_q.bits() + grad_k.bits();
      });
    }
  }
}

}  // namespace
}  // namespace bev
