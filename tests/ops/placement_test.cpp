// A small tensor-parallel model written by hand, with one collective missing, doubled or misplaced:
// every such mistake must be an error that names the op.
#include <gtest/gtest.h>

#include "base/philox.h"
#include "ops/collective.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/linear.h"
#include "ops/loss.h"
#include "ops/norm.h"
#include "tests/support/expect_error.h"
#include "tests/support/op_rig.h"

namespace bev::test {
namespace {

enum class Mistake {
  kNone,
  kNoEnter,
  kEnterTwice,
  kNoLeave,
  kLeaveTwice,
  kLeaveBeforeRow,
  kBiasBeforeLeave,
  kBiasInRowLinear,
  kDropoutBeforeLeave,
  kResidualBeforeLeave,
  kNormBeforeLeave,
  kActivationAfterRow,
  kSplitTokensOnce,
  kNoLeaveAfterEmbedding,
  kPositionsBeforeLeave,
  kNoEnterBeforeHead,
};

constexpr std::int64_t kTokens = 6, kHidden = 4, kInner = 8, kVocabulary = 10;

struct Layer {
  Param *norm, *fc1, *fc1_bias, *fc2, *fc2_bias;
};
struct Model {
  Param *table, *positions, *final_norm, *head;
  std::vector<Layer> layers;
};

Model make_model(Bench& bench) {
  std::int64_t tp = bench.mesh.tp().size(), rank = bench.mesh.tp().rank();
  auto make = [&](const std::string& name, const Shape& shape, const Split& split) {
    std::int64_t count = split.local_shape(shape, {tp, rank}).numel();
    return &bench.param(name, shape, split, case_numbers(count, hash_name(name)));
  };
  Split column{Axis::kTp, 0, {}}, row{Axis::kTp, 1, {}};
  Model model;
  model.table = make("table", {kVocabulary, kHidden}, column);
  model.positions = make("positions", {kTokens, kHidden}, {});
  for (int i = 0; i < 2; ++i) {
    model.layers.push_back({make(concat("norm", i), {kHidden}, {}),
                            make(concat("up", i), {kInner, kHidden}, column),
                            make(concat("up_bias", i), {kInner}, column),
                            make(concat("down", i), {kHidden, kInner}, row),
                            make(concat("down_bias", i), {kHidden}, {})});
  }
  model.final_norm = make("final_norm", {kHidden}, {});
  model.head = make("head", {kVocabulary, kHidden}, column);
  return model;
}

Var norm_of(Context& ctx, const Var& x, const Param* weight) {
  NormSpec spec;
  spec.weight = weight;
  return norm(ctx, x, spec);
}

Var run_layer(Bench& bench, const Layer& layer, const Var& x, Mistake mistake) {
  Context& ctx = bench.ctx;
  auto is = [&](Mistake m) { return mistake == m; };
  Var y = norm_of(ctx, x, layer.norm);
  if (!is(Mistake::kNoEnter)) y = enter_tensor_parallel(ctx, y, kTokens);
  if (is(Mistake::kEnterTwice)) y = enter_tensor_parallel(ctx, y, kTokens);
  y = activation(ctx, linear(ctx, y, *layer.fc1, layer.fc1_bias),
                 {Activation::kGelu, false, false});
  if (is(Mistake::kLeaveBeforeRow)) y = leave_tensor_parallel(ctx, y, false);
  y = linear(ctx, y, *layer.fc2, is(Mistake::kBiasInRowLinear) ? layer.fc2_bias : nullptr);
  if (is(Mistake::kActivationAfterRow)) y = activation(ctx, y, {});
  if (is(Mistake::kBiasBeforeLeave)) y = add_bias(ctx, y, *layer.fc2_bias);
  if (is(Mistake::kNormBeforeLeave)) y = norm_of(ctx, y, layer.norm);
  if (is(Mistake::kDropoutBeforeLeave)) {
    y = dropout(ctx, y, 0.1, bench.layout, RandomUse::kMlpDropout);
  }
  if (is(Mistake::kResidualBeforeLeave)) y = add(ctx, x, y);
  if (!is(Mistake::kNoLeave)) y = leave_tensor_parallel(ctx, y, is(Mistake::kSplitTokensOnce));
  if (is(Mistake::kLeaveTwice)) y = leave_tensor_parallel(ctx, y, false);
  return add(ctx, x, add_bias(ctx, y, *layer.fc2_bias));
}

// Forward and backward; the mistake is in the second layer.
void run_model(Bench& bench, Mistake mistake) {
  Context& ctx = bench.ctx;
  ctx.training = true;
  SampleShape sample{{2, 4}};
  bench.layout = SequenceLayout::make(ctx, {&sample, 1}, 0);
  Model model = make_model(bench);
  Tape tape;
  ctx.tape = &tape;
  Placement rows = Placement().with(Axis::kDp, PlaceState::kShard0);
  Var x = embedding(ctx, bench.integers({1, 9, 4, 4, 0, 7}), *model.table, {}, rows);
  if (mistake == Mistake::kPositionsBeforeLeave) {
    x = add_positions(ctx, x, bench.layout, *model.positions);
  }
  if (mistake != Mistake::kNoLeaveAfterEmbedding) x = leave_tensor_parallel(ctx, x, false);
  x = run_layer(bench, model.layers[0], x, Mistake::kNone);
  x = run_layer(bench, model.layers[1], x, mistake);
  x = norm_of(ctx, x, model.final_norm);
  if (mistake != Mistake::kNoEnterBeforeHead) x = enter_tensor_parallel(ctx, x, kTokens);
  LossTargets targets{bench.integers({9, 4, 4, 0, 7, 2}),
                      bench.tensor({kTokens}, std::vector<double>(kTokens, 1.0), Dtype::kF32)};
  GradSlot loss(lm_head_loss(ctx, x, targets, {model.head}).loss);
  x = Var();
  tape.add_gradient(ctx, loss, bench.tensor({1}, {1}), loss.placement.dual());
  tape.backward(ctx);
}

struct Row {
  Mistake mistake;
  std::vector<std::string> parts;
};
const Row kRows[] = {
    {Mistake::kNoEnter, {"linear up1", "must be copied"}},
    {Mistake::kEnterTwice, {"enter_tensor_parallel", "copied"}},
    {Mistake::kNoLeave, {"add_bias down_bias1", "partial"}},
    {Mistake::kLeaveTwice, {"leave_tensor_parallel", "must be a partial sum"}},
    {Mistake::kLeaveBeforeRow, {"leave_tensor_parallel", "shard(1)"}},
    {Mistake::kBiasBeforeLeave, {"add_bias down_bias1", "partial"}},
    {Mistake::kBiasInRowLinear, {"linear down1", "after the reduction"}},
    {Mistake::kDropoutBeforeLeave, {"dropout", "partial"}},
    {Mistake::kNormBeforeLeave, {"norm norm1", "partial"}},
    {Mistake::kActivationAfterRow, {"activation", "partial"}},
    {Mistake::kNoLeaveAfterEmbedding, {"norm norm0", "partial"}},
    {Mistake::kPositionsBeforeLeave, {"add_positions", "partial"}},
    {Mistake::kNoEnterBeforeHead, {"head head", "must be copied"}},
};

TEST(Placement, AMissingOrDoubledCollectiveIsAnErrorThatNamesTheOp) {
  for (const Row& row : kRows) {
    SCOPED_TRACE(static_cast<int>(row.mistake));
    // A single rank detects it too.
    expect_error(ErrorKind::kInternal, row.parts, [&] {
      Bench bench(Dtype::kF64);
      run_model(bench, row.mistake);
    });
    expect_error(ErrorKind::kInternal, row.parts, [&] {
      run_thread_ranks(2, {20.0}, [&](World& world) {
        Bench bench(world, {2, 1, 1, 1}, Dtype::kF64);
        run_model(bench, row.mistake);
      });
    });
  }
  for (Mistake mistake : {Mistake::kResidualBeforeLeave, Mistake::kSplitTokensOnce}) {
    SCOPED_TRACE(static_cast<int>(mistake));
    expect_error(ErrorKind::kShape, {"add: ", "tp: "}, [&] {
      Bench bench(Dtype::kF64);
      run_model(bench, mistake);
    });
  }
}

TEST(Placement, TheModelWithoutAMistakeRuns) {
  for (int ranks : {1, 2}) {
    run_thread_ranks(ranks, {20.0}, [&](World& world) {
      Bench bench(world, {ranks, 1, 1, 1}, Dtype::kF64);
      run_model(bench, Mistake::kNone);
    });
  }
}

}  // namespace
}  // namespace bev::test
