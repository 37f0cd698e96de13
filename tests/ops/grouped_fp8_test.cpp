// Grouped GEMM in FP8 with blockwise scales: rows and weights of each expert are quantised as
// separate matrices, and results and gradients are those of the quantised values.
#include <gtest/gtest.h>

#include "autograd/quantize.h"
#include "backend/cpu/cpu_kernels.h"
#include "kernels/gemm.h"
#include "kernels/moe.h"
#include "kernels/quantize.h"
#include "ops/moe/expert_exchange.h"
#include "ops/moe/moe.h"
#include "tests/support/op_rig.h"

namespace bev::test {
namespace {

constexpr Fp8Recipe kBlocks = {Fp8Scaling::kBlockwise, Fp8Format::kE5m2, 0, true};

// Dequantised element k of a row.
double number_at(const ScaledView& from, std::int64_t row, std::int64_t k) {
  auto byte = from.payload.as<std::uint8_t>()[row * from.payload.shape[1] + k];
  bool square = from.block == ScaleBlock::kSquare;
  std::int64_t line = (square ? row : k) / 128, at = square ? k / 128 : row;
  return static_cast<double>(from_fp8(from.format, byte)) *
         static_cast<double>(from.scales.as<float>()[line * from.scales.shape[1] + at]);
}

// A bench whose weights have FP8 forms.
struct BlockBench : Weights {
  explicit BlockBench(Dtype dtype)
      : bench(dtype, 2), ctx{bench.ctx.kernels, bench.ctx.stream, bench.arena,
                             bench.arena,       bench.mesh,       *this,
                             bench.store,       bench.ctx.step,   dtype} {
    ctx.tape = &tape;
  }
  WeightLease use(const Param& param) override { return bench.store.use(param); }
  PackedOperand* packed(const Param&, const GemmArgs&, std::int64_t) override { return nullptr; }
  Quantized quantized(const Param& param) override {
    View value = use(param).view;
    return rounded(value.reshape({param.local[0] * param.local[1], param.local[2]}),
                   Fp8Role::kWeight, {});
  }
  AmaxSlot amax(const Param&, Fp8Role) override { return {}; }

  Quantized rounded(const View& x, Fp8Role role, const QuantizeGroups& groups) {
    QuantizeRequest request;
    request.x = x;
    request.recipe = kBlocks;
    request.role = role;
    request.groups = groups;
    return quantize({ctx.kernels, ctx.stream, bench.arena}, request);
  }
  Tensor random(const Shape& shape, std::uint64_t key) {
    return bench.tensor(shape, case_numbers(shape.numel(), key));
  }

  Bench bench;
  Tape tape;
  Context ctx;
};

// Rows of experts with none, few, exactly one block and more of them, and rows without a token.
struct Rows {
  explicit Rows(BlockBench& with) {
    std::vector<std::int32_t> ends = {0}, slots, places(2 * tokens, -1);
    for (std::int32_t count : {3, 0, 130, 1, 128}) ends.push_back(ends.back() + count);
    for (std::int32_t r = 0; r < total; ++r) {
      slots.push_back(r < ends.back() ? r * 7 % 300 : -1);
      if (slots.back() >= 0) places[static_cast<std::size_t>(slots.back())] = r;
    }
    offsets = with.bench.integers(ends);
    order = with.bench.integers(slots);
    place = with.bench.integers(places);
  }
  QuantizeGroups groups() const {
    return {offsets.as<std::int32_t>(), experts, total, order.as<std::int32_t>(),
            place.as<std::int32_t>(),   2};
  }
  std::int64_t begin(std::int64_t e) const { return offsets.as<std::int32_t>()[e]; }

  static constexpr std::int64_t experts = 5, total = 270, tokens = 150;
  Tensor offsets, order, place;
};

TEST(GroupedFp8, RowsAreQuantisedAsEachExpertsOwnMatrix) {
  BlockBench with(Dtype::kBf16);
  Rows rows(with);
  Tensor x = with.random({rows.tokens, 256}, 1);
  Tensor gathered = with.ctx.allocate(x.dtype(), {rows.total, 256}, "test");
  with.ctx.kernels.moe.permute_rows(with.ctx.stream, {.x = x,
                                                      .rows = gathered,
                                                      .order = rows.order.as<std::int32_t>(),
                                                      .place = rows.place.as<std::int32_t>(),
                                                      .topk = 2});
  Quantized all = with.rounded(x, Fp8Role::kGradient, rows.groups());
  QuantizeGroups in_place = rows.groups();
  in_place.order = nullptr;
  Quantized same = with.rounded(gathered, Fp8Role::kGradient, in_place);
  for (std::int64_t e = 0; e < rows.experts; ++e) {
    std::int64_t begin = rows.begin(e), count = rows.begin(e + 1) - begin;
    if (count == 0) continue;
    Quantized own = with.rounded(gathered.rows(begin, begin + count), Fp8Role::kGradient, {});
    std::int64_t turned = run_begin(begin, e);
    for (const Quantized& grouped : {all, same}) {
      for (std::int64_t k = 0; k < 256; ++k) {
        for (std::int64_t i = 0; i < count; ++i) {
          ASSERT_EQ(number_at(grouped.by_rows(), begin + i, k), number_at(own.by_rows(), i, k))
              << "expert " << e << ", row " << i << ", column " << k;
        }
        for (std::int64_t i = 0; i < own.columns.shape()[1]; ++i) {
          ASSERT_EQ(number_at(grouped.by_columns(), k, turned + i),
                    number_at(own.by_columns(), k, i))
              << "expert " << e << ", row " << i << ", column " << k;
        }
      }
    }
  }
}

TEST(GroupedFp8, ExpertsHaveRunsOfTheirOwnWhateverTheirNumbersAre) {
  for (std::int64_t before : {0, 1, 127, 128, 129, 1000}) {
    for (std::int64_t rows : {0, 1, 127, 128, 129, 255, 256, 257}) {
      EXPECT_GE(run_begin(before + rows, 4) - run_begin(before, 3),
                padded_rows(ScaleBlock::kRun, rows));
    }
  }
}

// Sums over `depth` of f(i, j, k).
template <class F>
std::vector<double> products(std::int64_t rows, std::int64_t columns, std::int64_t depth,
                             const F& f) {
  std::vector<double> out;
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) {
      double sum = 0;
      for (std::int64_t k = 0; k < depth; ++k) sum += f(i, j, k);
      out.push_back(sum);
    }
  }
  return out;
}

std::vector<double> part(const std::vector<double>& from, std::int64_t begin, std::size_t count) {
  return {from.begin() + begin, from.begin() + begin + static_cast<std::int64_t>(count)};
}

// A layer of three experts; all tokens choose the first and none the second.
struct Layer {
  static constexpr std::int64_t kTokens = 150, kIn = 128, kOut = 256, kExperts = 3;

  Layer() : with(Dtype::kF32) {
    std::vector<std::int32_t> choices;
    for (std::int32_t t = 0; t < kTokens; ++t) {
      choices.insert(choices.end(), {0, t % 3 == 0 ? 2 : -1});
    }
    Tensor chosen = with.bench.integers(choices).reshape({kTokens, 2});
    rows = sort_rows(with.ctx, chosen, 0, kExperts);
    Shape shape{kExperts, kOut, kIn};
    weight = &with.bench.param("w", shape, {Axis::kEtp, 1, {}}, case_numbers(shape.numel(), 3));
    bias = &with.bench.param("b", {kExperts, kOut}, {Axis::kEtp, 1, {}},
                             case_numbers(kExperts * kOut, 4));
    weight->fp8 = kBlocks;
    x = with.random({kTokens, kIn}, 5);
    dy = with.random({rows.count(), kOut}, 6);
  }
  void run(bool unwritten) {
    Placement copied = expert_placement(PlaceState::kCopied, PlaceState::kCopied);
    Var in = with.tape.track(x, copied);
    Var out = grouped_linear(with.ctx, permute(with.ctx, in, rows, unwritten), rows, *weight, bias);
    y = values_of(out.tensor);
    with.tape.add_gradient(with.ctx, GradSlot(out), dy, out.placement.dual());
    with.tape.backward(with.ctx);
    dx = values_of(with.tape.take_gradient(in.id));
  }
  QuantizeGroups groups() const {
    return {rows.offsets.as<std::int32_t>(), kExperts, rows.count()};
  }
  std::int64_t begin(std::int64_t e) const { return rows.offsets.as<std::int32_t>()[e]; }

  BlockBench with;
  ExpertRows rows;
  Param *weight, *bias;
  Tensor x, dy;
  std::vector<double> y, dx;
};

TEST(GroupedFp8, ResultsAndGradientsAreThoseOfTheNumbersThatWereRounded) {
  constexpr std::int64_t kIn = Layer::kIn, kOut = Layer::kOut;
  Layer layer;
  layer.run(true);
  Tensor gathered = permute_rows(layer.with.ctx, layer.x, layer.rows, "test");
  Quantized x = layer.with.rounded(gathered, Fp8Role::kInput, layer.groups());
  Quantized dy = layer.with.rounded(layer.dy, Fp8Role::kGradient, layer.groups());
  Quantized w = layer.with.quantized(*layer.weight);
  std::vector<double> bias = values_of(layer.with.use(*layer.bias).view);
  std::vector<double> dw = layer.with.bench.store.gradient(*layer.weight);
  std::vector<double> dx_rows(static_cast<std::size_t>(layer.rows.count() * kIn));
  for (std::int64_t e = 0; e < Layer::kExperts; ++e) {
    std::int64_t begin = layer.begin(e), count = layer.begin(e + 1) - begin;
    std::int64_t turned = run_begin(begin, e);
    auto y = products(count, kOut, kIn, [&](auto i, auto j, auto k) {
      double added = k == 0 ? bias[static_cast<std::size_t>(e * kOut + j)] : 0;
      return number_at(x.by_rows(), begin + i, k) * number_at(w.by_rows(), e * kOut + j, k) + added;
    });
    EXPECT_LT(relative_error(part(layer.y, begin * kOut, y.size()), y), 1e-6) << "y of " << e;
    auto dx = products(count, kIn, kOut, [&](auto i, auto j, auto k) {
      return number_at(dy.by_rows(), begin + i, k) * number_at(w.by_columns(), j, e * kOut + k);
    });
    std::copy(dx.begin(), dx.end(), dx_rows.begin() + begin * kIn);
    auto expected = products(kOut, kIn, count, [&](auto i, auto j, auto k) {
      return number_at(dy.by_columns(), i, turned + k) * number_at(x.by_columns(), j, turned + k);
    });
    EXPECT_LT(relative_error(part(dw, e * kOut * kIn, expected.size()), expected), 1e-6)
        << "dw of " << e;
  }
  std::vector<double> dx(layer.dx.size());
  const auto* order = layer.rows.order.as<std::int32_t>();
  for (std::int64_t r = 0; r < layer.begin(Layer::kExperts); ++r) {
    for (std::int64_t j = 0; j < kIn; ++j) {
      dx[static_cast<std::size_t>(order[r] / 2 * kIn + j)] +=
          dx_rows[static_cast<std::size_t>(r * kIn + j)];
    }
  }
  EXPECT_LT(relative_error(layer.dx, dx), 1e-6);
}

TEST(GroupedFp8, RowsThatAreNotWrittenGiveTheSameBits) {
  Layer written, unwritten;
  written.run(false);
  unwritten.run(true);
  EXPECT_EQ(unwritten.y, written.y);
  EXPECT_EQ(unwritten.dx, written.dx);
  for (auto param : {&Layer::weight, &Layer::bias}) {
    EXPECT_EQ(unwritten.with.bench.store.gradient(*(unwritten.*param)),
              written.with.bench.store.gradient(*(written.*param)));
  }
}

// Without FP8 wgrad, weight gradients are those of the unquantised rows.
TEST(GroupedFp8, WeightGradientsMayStayInTheModelsPrecision) {
  Layer plain, rounded;
  plain.weight->fp8 = {};
  rounded.weight->fp8.wgrad = false;
  plain.run(false);
  rounded.run(false);
  EXPECT_NE(rounded.y, plain.y);
  EXPECT_NE(rounded.dx, plain.dx);
  EXPECT_EQ(rounded.with.bench.store.gradient(*rounded.weight),
            plain.with.bench.store.gradient(*plain.weight));
}

}  // namespace
}  // namespace bev::test
