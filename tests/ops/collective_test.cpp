#include "ops/collective.h"

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/support/op_checks.h"

namespace bev::test {
namespace {

constexpr std::int64_t kTokens = 5, kWidth = 3;
using Numbers = std::vector<double>;

Numbers of_rank(int rank, std::uint64_t key) {
  return case_numbers(kTokens * kWidth, key + static_cast<std::uint64_t>(rank));
}
Numbers sum_over(int ranks, std::uint64_t key) {
  Numbers sum(kTokens * kWidth, 0.0);
  for (int rank = 0; rank < ranks; ++rank) {
    Numbers part = of_rank(rank, key);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
  }
  return sum;
}
Numbers rows(const Numbers& whole, Range range) {
  return {whole.begin() + range.begin * kWidth, whole.begin() + range.end * kWidth};
}

struct Outcome {
  Numbers value, gradient;
  Placement placement;
};
template <class Op>
Outcome run(Bench& bench, PlaceState tp, const Numbers& x, const Numbers& dy, const Op& op) {
  Tape tape;
  bench.ctx.tape = &tape;
  auto shape = [](const Numbers& list) {
    return Shape{static_cast<std::int64_t>(list.size()) / kWidth, kWidth};
  };
  GradSlot in, out;
  Outcome outcome;
  {
    Var var = tape.track(bench.tensor(shape(x), x), Placement().with(Axis::kTp, tp));
    in = GradSlot(var);
    Var y = op(bench.ctx, var);
    out = GradSlot(y);
    outcome.value = values_of(y.tensor);
    outcome.placement = y.placement;
  }
  // Held by the test: the backward must not write to it.
  Tensor seed = bench.tensor(shape(dy), dy);
  tape.add_gradient(bench.ctx, out, seed, out.placement.dual());
  tape.backward(bench.ctx);
  EXPECT_EQ(values_of(seed), dy);
  outcome.gradient = values_of(tape.take_gradient(in.id));
  bench.ctx.tape = nullptr;
  return outcome;
}

void expect_close(const Numbers& got, const Numbers& want) {
  EXPECT_LT(relative_error(got, want), 1e-14);
}

TEST(TensorParallel, EnterAndLeaveAreTheirDefinitionsAndAdjoints) {
  for (int ranks : {1, 2, 3}) {
    SCOPED_TRACE(ranks);
    run_thread_ranks(ranks, {20.0}, [&](World& world) {
      Bench bench(world, {ranks, 1, 1, 1}, Dtype::kF64);
      int me = world.rank();
      Range mine = shard_range(kTokens, ranks, me);
      Numbers same = of_rank(0, 100);
      auto enter = [](Context& ctx, const Var& x) {
        return enter_tensor_parallel(ctx, x, kTokens);
      };

      Outcome out = run(bench, PlaceState::kReplicated, same, of_rank(me, 200), enter);
      EXPECT_EQ(out.value, same);
      EXPECT_EQ(out.placement[Axis::kTp], PlaceState::kCopied);
      expect_close(out.gradient, sum_over(ranks, 200));

      out = run(bench, PlaceState::kShard0, rows(same, mine), of_rank(me, 200), enter);
      EXPECT_EQ(out.value, same);
      expect_close(out.gradient, rows(sum_over(ranks, 200), mine));

      out = run(bench, PlaceState::kPartial, of_rank(me, 300), same,
                [](Context& ctx, const Var& x) { return leave_tensor_parallel(ctx, x, false); });
      expect_close(out.value, sum_over(ranks, 300));
      EXPECT_EQ(out.placement[Axis::kTp], PlaceState::kReplicated);
      EXPECT_EQ(out.gradient, same);

      out = run(bench, PlaceState::kPartial, of_rank(me, 300), rows(same, mine),
                [](Context& ctx, const Var& x) { return leave_tensor_parallel(ctx, x, true); });
      expect_close(out.value, rows(sum_over(ranks, 300), mine));
      EXPECT_EQ(out.placement[Axis::kTp], PlaceState::kShard0);
      EXPECT_EQ(out.gradient, same);
    });
  }
}

OpCase enter_case(const char* name, PlaceState tp) {
  return {name, {{{4, 3}, tp}}, {}, [](Bench& bench, const std::vector<Var>& in) {
            return OpOutputs{{enter_tensor_parallel(bench.ctx, in[0], 4)}};
          }};
}
OpCase leave_case(const char* name, bool split) {
  return {name,
          {{{4, 3}, PlaceState::kPartial}},
          {},
          [split](Bench& bench, const std::vector<Var>& in) {
            return OpOutputs{{leave_tensor_parallel(bench.ctx, in[0], split)}};
          }};
}
// On one rank.
const OpRows kRows("TensorParallel",
                   {enter_case("enter", PlaceState::kReplicated),
                    enter_case("enter cut tokens", PlaceState::kShard0), leave_case("leave", false),
                    leave_case("leave cut tokens", true)});

}  // namespace
}  // namespace bev::test
