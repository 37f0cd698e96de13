// Recurrent ops under context and tensor parallelism give the results of one rank.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <mutex>

#include "ops/recurrent/causal_conv.h"
#include "ops/recurrent/columns.h"
#include "ops/recurrent/gated_norm.h"
#include "ops/recurrent/ssd.h"
#include "tests/support/op_rig.h"

namespace bev::test {
namespace {

// Packed documents that chunks cut anywhere, a sample without tokens, and samples of few tokens.
const std::vector<SampleShape> kSamples = {{{11, 4, 2}}, {{}}, {{23}}, {{1, 1}}, {{1}}};
constexpr std::int64_t kTokens = 43;
constexpr std::int64_t kBegins[] = {0, 17, 17, 40, 42};

// Rows of the tokens of a rank, out of rows of all samples, and back.
std::vector<double> own_rows(const TokenSet& tokens, const std::vector<double>& all,
                             std::int64_t columns) {
  std::vector<double> rows;
  for (const DocumentPiece& piece : tokens.pieces()) {
    auto first = all.begin() + columns * (kBegins[piece.sample] + piece.sample_begin);
    rows.insert(rows.end(), first, first + columns * piece.count);
  }
  return rows;
}
void put_rows(const TokenSet& tokens, const std::vector<double>& rows, std::int64_t columns,
              std::vector<double>& all) {
  auto from = rows.begin();
  for (const DocumentPiece& piece : tokens.pieces()) {
    std::copy_n(from, columns * piece.count,
                all.begin() + columns * (kBegins[piece.sample] + piece.sample_begin));
    from += columns * piece.count;
  }
}

struct Result {
  std::vector<double> y;
  std::vector<std::vector<double>> inputs, params;  // gradients
};

// An op of inputs [T, C] whose rows are cut over cp.
struct CutOp {
  std::vector<std::int64_t> input_columns;
  std::vector<Shape> params;
  std::int64_t out_columns;
  std::function<Var(Bench&, const std::vector<Var>&, const SequenceLayout&)> run;
};

void add_to(std::vector<double>& sum, const std::vector<double>& more) {
  sum.resize(more.size());
  for (std::size_t i = 0; i < more.size(); ++i) sum[i] += more[i];
}

Result run_cut(const CutOp& op, int ranks) {
  Result result;
  std::mutex mutex;
  result.y.resize(static_cast<std::size_t>(kTokens * op.out_columns));
  for (std::int64_t columns : op.input_columns) {
    result.inputs.emplace_back(static_cast<std::size_t>(kTokens * columns));
  }
  result.params.resize(op.params.size());
  run_thread_ranks(ranks, {20.0}, [&](World& world) {
    Bench bench(world, {.cp = ranks}, Dtype::kF64);
    SequenceLayout layout = SequenceLayout::make(bench.ctx, kSamples, 0);
    Tape tape;
    bench.ctx.tape = &tape;
    std::uint64_t key = 0;
    std::vector<Var> inputs;
    for (std::int64_t columns : op.input_columns) {
      inputs.push_back(tape.track(
          bench.tensor({layout.tokens, columns},
                       own_rows(layout.own, case_numbers(kTokens * columns, ++key), columns)),
          batch_placement()));
    }
    for (const Shape& shape : op.params) {
      bench.param("p", shape, {}, case_numbers(shape.numel(), ++key), ParamFormat::kF32);
    }
    std::vector<GradSlot> slots;
    for (const Var& input : inputs) slots.emplace_back(input);
    Var y = op.run(bench, inputs, layout);
    const std::vector<double> dy = case_numbers(kTokens * op.out_columns, 99);
    tape.add_gradient(bench.ctx, GradSlot(y),
                      bench.tensor(y.shape(), own_rows(layout.own, dy, op.out_columns)),
                      batch_placement());
    tape.backward(bench.ctx);
    const std::lock_guard lock(mutex);
    put_rows(layout.own, values_of(y.tensor), op.out_columns, result.y);
    for (std::size_t i = 0; i < slots.size(); ++i) {
      put_rows(layout.own, values_of(tape.take_gradient(slots[i].id)), op.input_columns[i],
               result.inputs[i]);
    }
    for (std::size_t i = 0; i < op.params.size(); ++i) {
      add_to(result.params[i], bench.store.gradient(*bench.params[i]));
    }
  });
  return result;
}

void expect_same_on_any_ranks(const CutOp& op) {
  const Result one = run_cut(op, 1);
  for (int ranks : {2, 3, 4}) {
    SCOPED_TRACE(ranks);
    const Result many = run_cut(op, ranks);
    EXPECT_LT(relative_error(many.y, one.y), 1e-13);
    for (std::size_t i = 0; i < one.inputs.size(); ++i) {
      EXPECT_LT(relative_error(many.inputs[i], one.inputs[i]), 1e-13) << "input " << i;
    }
    for (std::size_t i = 0; i < one.params.size(); ++i) {
      EXPECT_LT(relative_error(many.params[i], one.params[i]), 1e-12) << "parameter " << i;
    }
  }
}

TEST(CausalConv, GivesOneRanksResultUnderContextParallelism) {
  for (std::int64_t width : {1, 2, 4, 9}) {
    SCOPED_TRACE(width);
    expect_same_on_any_ranks(
        {{3},
         {{3, 1, width}, {3}},
         3,
         [](Bench& bench, const std::vector<Var>& in, const SequenceLayout& layout) {
           const CausalConvSpec spec{.weight = bench.params[0].get(),
                                     .bias = bench.params[1].get()};
           return causal_conv(bench.ctx, in[0], spec, {&layout}, 0);
         }});
  }
}

TEST(Ssd, GivesOneRanksResultUnderContextParallelism) {
  for (std::int64_t chunk : {1, 4, 64}) {
    SCOPED_TRACE(chunk);
    expect_same_on_any_ranks(
        {{2 * 3 + 2 * 4, 2},
         {{2}, {2}, {2}},
         6,
         [chunk](Bench& bench, const std::vector<Var>& in, const SequenceLayout& layout) {
           SsdSpec spec{bench.params[0].get(), bench.params[1].get(), bench.params[2].get(), {}};
           spec.shape.chunk = chunk;
           spec.shape.heads = spec.shape.heads_per_group = 2;
           spec.shape.head_size = 3;
           spec.shape.state_size = 4;
           return ssd(bench.ctx, in[0], in[1], spec, {&layout}, 0);
         }});
  }
}

constexpr std::int64_t kRows = 5;

// Columns of a rank out of rows of all columns.
std::vector<double> cut_columns(const std::vector<double>& all, std::int64_t columns,
                                const std::vector<Range>& parts) {
  std::vector<double> rows;
  for (std::int64_t row = 0; row < kRows; ++row) {
    for (const Range& part : parts) {
      auto first = all.begin() + row * columns;
      rows.insert(rows.end(), first + part.begin, first + part.end);
    }
  }
  return rows;
}

const Placement kColumnsCut = Placement().with(Axis::kTp, PlaceState::kShard1);

// Groups that end within a rank, at its border, and that several ranks have parts of.
TEST(GatedNorm, GivesOneRanksResultUnderTensorParallelism) {
  constexpr std::int64_t kColumns = 24;
  for (std::int64_t group : {24, 12, 8, 6, 2}) {
    for (bool gate_first : {true, false}) {
      SCOPED_TRACE(concat(group, " ", gate_first));
      std::vector<std::vector<double>> one;
      for (int ranks : {1, 2, 4}) {
        run_thread_ranks(ranks, {20.0}, [&](World& world) {
          Bench bench(world, {.tp = ranks}, Dtype::kF64);
          const std::vector<Range> mine = {shard_range(kColumns, ranks, bench.mesh.tp().rank())};
          const std::int64_t width = kColumns / ranks;
          auto numbers = [&](std::uint64_t key) {
            return cut_columns(case_numbers(kRows * kColumns, key), kColumns, mine);
          };
          const std::vector<double> weights = case_numbers(kColumns, 7);
          const Param& weight =
              bench.param("w", {kColumns}, {Axis::kTp, 0, {}},
                          {weights.begin() + mine[0].begin, weights.begin() + mine[0].end});
          Tape tape;
          bench.ctx.tape = &tape;
          Var x = tape.track(bench.tensor({kRows, width}, numbers(1)), kColumnsCut);
          Var z = tape.track(bench.tensor({kRows, width}, numbers(2)), kColumnsCut);
          GradSlot to_x(x), to_z(z);
          Var y = gated_norm(bench.ctx, x, z,
                             {.weight = &weight, .group_width = group, .gate_first = gate_first});
          tape.add_gradient(bench.ctx, GradSlot(y), bench.tensor({kRows, width}, numbers(3)),
                            kColumnsCut);
          const std::vector<double> result = values_of(y.tensor);
          tape.backward(bench.ctx);
          const std::vector<std::vector<double>> got = {
              result, values_of(tape.take_gradient(to_x.id)),
              values_of(tape.take_gradient(to_z.id)), bench.store.gradient(weight)};
          if (ranks == 1) {
            one = got;
            return;
          }
          for (std::size_t i = 0; i < 3; ++i) {
            EXPECT_LT(relative_error(got[i], cut_columns(one[i], kColumns, mine)), 1e-13) << i;
          }
          EXPECT_LT(relative_error(got[3],
                                   {one[3].begin() + mine[0].begin, one[3].begin() + mine[0].end}),
                    1e-13);
        });
      }
    }
  }
}

// Shared columns of an uneven number: every rank has all, and the gradients of all are summed.
TEST(Columns, SharedOnesAreGatheredAndTheirGradientsSummed) {
  constexpr std::int64_t kOwn = 3;
  const std::array<std::int64_t, 2> shared = {5, 4};
  for (int ranks : {1, 2, 4}) {
    SCOPED_TRACE(ranks);
    run_thread_ranks(ranks, {20.0}, [&](World& world) {
      Bench bench(world, {.tp = ranks}, Dtype::kF64);
      const int rank = bench.mesh.tp().rank();
      const std::vector<double> all = case_numbers(kRows * 9, 1);
      const Range first = shard_range(5, ranks, rank), second = shard_range(4, ranks, rank);
      const std::int64_t part = first.size() + second.size();
      const std::vector<double> own =
          case_numbers(kRows * kOwn, 10 + static_cast<std::uint64_t>(rank));
      auto joined = [](const std::vector<double>& left, std::int64_t left_columns,
                       const std::vector<double>& right, std::int64_t right_columns) {
        std::vector<double> rows;
        for (std::int64_t row = 0; row < kRows; ++row) {
          auto a = left.begin() + row * left_columns, b = right.begin() + row * right_columns;
          rows.insert(rows.end(), a, a + left_columns);
          rows.insert(rows.end(), b, b + right_columns);
        }
        return rows;
      };
      const std::vector<Range> mine = {first, {5 + second.begin, 5 + second.end}};
      Tape tape;
      bench.ctx.tape = &tape;
      Var x = tape.track(
          bench.tensor({kRows, kOwn + part}, joined(own, kOwn, cut_columns(all, 9, mine), part)),
          kColumnsCut);
      GradSlot slot(x);
      Var y = share_columns(bench.ctx, x, kOwn, shared);
      EXPECT_EQ(values_of(y.tensor), joined(own, kOwn, all, 9));
      const std::vector<double> dy = case_numbers(kRows * (kOwn + 9), 5);
      tape.add_gradient(bench.ctx, GradSlot(y), bench.tensor({kRows, kOwn + 9}, dy), kColumnsCut);
      tape.backward(bench.ctx);
      const std::vector<double> dx = values_of(tape.take_gradient(slot.id));
      std::vector<double> expected = cut_columns(dy, kOwn + 9,
                                                 {{0, kOwn},
                                                  {kOwn + mine[0].begin, kOwn + mine[0].end},
                                                  {kOwn + mine[1].begin, kOwn + mine[1].end}});
      for (std::size_t i = 0; i < expected.size(); ++i) {
        const bool is_shared = static_cast<std::int64_t>(i) % (kOwn + part) >= kOwn;
        EXPECT_DOUBLE_EQ(dx[i], is_shared ? ranks * expected[i] : expected[i]);
      }
    });
  }
}

}  // namespace
}  // namespace bev::test
