// MoE dispatch and combine over thread ranks, with arbitrary choices and experts that only scale
// their input, so that the result is known.
#include "ops/moe/expert_exchange.h"

#include <gtest/gtest.h>

#include "ops/moe/moe.h"
#include "tests/support/op_rig.h"

namespace bev::test {
namespace {

constexpr std::int64_t kHidden = 4, kExperts = 6, kTopk = 2;
using Numbers = std::vector<double>;
using Choices = std::vector<std::int32_t>;  // [T, k]

double scale_of(std::int64_t expert) { return 1 + 0.5 * static_cast<double>(expert); }

struct Scene {
  const char* name;
  std::vector<Choices> of_rank;  // per rank, four ranks
};
const std::vector<Scene> kScenes = {
    {"mixed, a rank has no tokens",
     {{0, 5, 3, 1, 2, 4}, {}, {5, 4, 1, 0, 3, 2, 2, 5, 0, 3}, {4, 1}}},
    {"all to the last rank's", {{5, 4, 4, 5}, {4, 5, 5, 4}, {5, 4}, {4, 5, 4, 5, 5, 4}}},
    {"one rank has all tokens", {{}, {0, 1, 2, 3, 4, 5, 5, 0}, {}, {}}},
    {"some are dropped", {{0, -1, -1, -1, -1, 4}, {-1, 3}, {}, {-1, -1, 5, 0}}},
    {"all are dropped", {{-1, -1}, {-1, -1, -1, -1}, {}, {-1, -1}}},
};

// Inputs of one rank.
struct Drawn {
  const Choices& chosen;
  Numbers x, probs, dy;  // [T, H], [T, k], [T, H]
};
Drawn drawn(const Scene& scene, int rank) {
  const Choices& chosen = scene.of_rank[static_cast<std::size_t>(rank)];
  auto slots = static_cast<std::int64_t>(chosen.size()), numbers = slots / kTopk * kHidden;
  auto key = static_cast<std::uint64_t>(rank);
  return {chosen, case_numbers(numbers, key), case_numbers(slots, 10 + key),
          case_numbers(numbers, 20 + key)};
}

// This rank's part of the expert matrices scale * identity [H, H], split over dim 1 or 2.
Numbers scaling_weights(const Mesh& mesh, int dim, bool scaled) {
  Range experts = shard_range(kExperts, mesh.shape().ep, mesh.at().ep);
  Range part = shard_range(kHidden, mesh.shape().etp, mesh.at().etp);
  Range rows = dim == 1 ? part : Range{0, kHidden}, columns = dim == 2 ? part : Range{0, kHidden};
  Numbers out;
  for (std::int64_t e = experts.begin; e < experts.end; ++e) {
    for (std::int64_t r = rows.begin; r < rows.end; ++r) {
      for (std::int64_t c = columns.begin; c < columns.end; ++c) {
        out.push_back(r == c ? (scaled ? scale_of(e) : 1) : 0);
      }
    }
  }
  return out;
}

struct Outcome {
  Numbers value, dx, dprobs;
  std::int64_t rows = 0;  // computed by the experts of the rank
};
// `lost` (nullptr: exact sizes) counts rows that did not fit.
Outcome run_experts(Bench& bench, const Drawn& rank, const ExpertParallel& parallel, double* lost) {
  const auto& [chosen, x, probs, dy] = rank;
  Context& ctx = bench.ctx;
  ctx.lost_rows = lost;
  auto tokens = static_cast<std::int64_t>(chosen.size()) / kTopk;
  std::vector<SampleShape> samples;
  if (tokens > 0) samples.push_back({{static_cast<std::int32_t>(tokens)}});
  SequenceLayout layout = SequenceLayout::make(ctx, samples, 0);
  Shape shape{kExperts, kHidden, kHidden};
  Param& up = bench.param("up", shape, {Axis::kEtp, 1, {}}, scaling_weights(bench.mesh, 1, true));
  Param& down =
      bench.param("down", shape, {Axis::kEtp, 2, {}}, scaling_weights(bench.mesh, 2, false));
  Tape tape;
  ctx.tape = &tape;
  Outcome outcome;
  {
    Placement placement = batch_placement();
    Var in = tape.track(bench.tensor({tokens, kHidden}, x), placement);
    Var weights = tape.track(bench.tensor({tokens, kTopk}, probs), placement);
    Tensor choices = bench.integers(chosen).reshape({tokens, kTopk});
    DispatchRef dispatch = plan_dispatch(ctx, parallel, choices, kExperts, placement, layout);
    DispatchedTokens dispatched = start_dispatch(ctx, in, dispatch, parallel.overlap_shared);
    Tensor choices_inside =
        dispatch_tokens(ctx, Var{choices, placement, -1, nullptr}, dispatch).tensor;
    ExpertRows rows = rows_of_experts(ctx, choices_inside, kExperts, *dispatch);
    if (!dispatch->fixed && dispatch->expert_rows >= 0) {
      EXPECT_EQ(dispatch->expert_rows, count_rows(ctx, rows, 0));
    }
    Var inside = dispatch_tokens(ctx, weights, dispatch);
    Var scaled = grouped_linear(
        ctx, permute(ctx, finish_dispatch(ctx, std::move(dispatched)), rows), rows, up, nullptr);
    Var out = unpermute(
        ctx, grouped_linear(ctx, scale_by_probs(ctx, scaled, inside, rows), rows, down, nullptr),
        rows);
    Var y = combine_tokens(ctx, out, placement, dispatch);
    outcome.value = values_of(y.tensor);
    outcome.rows = rows.count();
    tape.add_gradient(ctx, GradSlot(y), bench.tensor({tokens, kHidden}, dy), placement.dual());
    tape.backward(ctx);
    outcome.dx = values_of(tape.take_gradient(in.id));
    outcome.dprobs = values_of(tape.take_gradient(weights.id));
  }
  ctx.tape = nullptr;
  return outcome;
}

// The same result computed without any exchange.
Outcome expected_outcome(const Drawn& rank) {
  const auto& [chosen, x, probs, dy] = rank;
  Outcome out{Numbers(x.size()), Numbers(x.size()), Numbers(probs.size()), 0};
  for (std::size_t slot = 0; slot < chosen.size(); ++slot) {
    if (chosen[slot] < 0) continue;
    std::size_t first = slot / kTopk * kHidden;
    for (std::size_t i = first; i < first + kHidden; ++i) {
      out.value[i] += probs[slot] * scale_of(chosen[slot]) * x[i];
      out.dx[i] += probs[slot] * scale_of(chosen[slot]) * dy[i];
      out.dprobs[slot] += scale_of(chosen[slot]) * x[i] * dy[i];
    }
  }
  return out;
}

void expect_close(const Numbers& got, const Numbers& want) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-13);
}

TEST(ExpertExchange, AnyChoicesComeBackToTheirTokens) {
  const std::vector<std::pair<std::int64_t, std::int64_t>> grids = {{1, 4}, {2, 2}, {1, 2}, {4, 1}};
  for (auto [etp, ep] : grids) {
    MeshShape mesh{.dp = 4, .etp = etp, .ep = ep};
    for (const Scene& scene : kScenes) {
      run_thread_ranks(4, {20.0}, [&](World& world) {
        Drawn rank = drawn(scene, world.rank());
        Outcome want = expected_outcome(rank);
        for (TokenDispatcher dispatcher :
             {TokenDispatcher::kAllGather, TokenDispatcher::kAllToAll}) {
          Outcome plain;
          for (bool overlap : {false, true}) {
            SCOPED_TRACE(concat(scene.name, ", etp ", etp, ", ep ", ep, ", rank ", world.rank()));
            Bench bench(world, mesh, Dtype::kF64);
            Outcome got = run_experts(bench, rank, {dispatcher, overlap}, nullptr);
            expect_close(got.value, want.value);
            expect_close(got.dx, want.dx);
            expect_close(got.dprobs, want.dprobs);
            if (!overlap) plain = got;
            EXPECT_TRUE(plain.value == got.value && plain.dx == got.dx &&
                        plain.dprobs == got.dprobs);
          }
        }
      });
    }
  }
}

// Either everything fits and results are bitwise those of exact sizes, or the lost rows are
// counted.
TEST(ExpertExchange, FixedSizesHoldEverythingOrSayThatTheyDoNot) {
  for (auto [etp, ep] : std::vector<std::pair<std::int64_t, std::int64_t>>{{1, 4}, {2, 2}}) {
    MeshShape mesh{.dp = 4, .etp = etp, .ep = ep};
    for (const Scene& scene : kScenes) {
      for (double factor : {0.3, 1.0, 1.5, 100.0}) {
        run_thread_ranks(4, {20.0}, [&](World& world) {
          SCOPED_TRACE(concat(scene.name, ", etp ", etp, ", factor ", factor));
          Drawn rank = drawn(scene, world.rank());
          for (TokenDispatcher dispatcher :
               {TokenDispatcher::kAllGather, TokenDispatcher::kAllToAll}) {
            Bench bench(world, mesh, Dtype::kF64);
            ExpertParallel parallel{.dispatcher = dispatcher, .rank_capacity = factor};
            Outcome exact = run_experts(bench, rank, parallel, nullptr);
            double lost = 0;
            Outcome fixed = run_experts(bench, rank, parallel, &lost);
            View all{&lost, Dtype::kF64, {1}};
            bench.mesh.world().all_reduce(all, Reduction::kSum, "lost rows").wait();
            EXPECT_TRUE(lost == 0 || factor < 100);
            if (lost > 0) continue;
            EXPECT_GE(fixed.rows, exact.rows);
            EXPECT_TRUE(exact.value == fixed.value && exact.dx == fixed.dx &&
                        exact.dprobs == fixed.dprobs);
          }
        });
      }
    }
  }
}

}  // namespace
}  // namespace bev::test
