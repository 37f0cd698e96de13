// Optimizers of whole matrices give one rank's answer, whatever holds which part of a matrix:
// weights after three steps to 1e-9, in f64.
#include <gtest/gtest.h>

#include "tests/support/layouts.h"
#include "verify/layouts.h"

namespace bev::test {
namespace {

void expect_one_ranks_answer(const TinyRun& single, const std::vector<std::string>& layouts) {
  LayoutAnswer expected = run_tiny(single);
  EXPECT_NE(expected.losses[0], expected.losses[2]);
  for (const std::string& layout : layouts) {
    TinyRun run = single;
    run.parallel = parse_layouts(layout, {}).at(0);
    EXPECT_EQ(answer_difference(expected, run_tiny(run)), "") << layout;
  }
}

TinyRun run_of(const ModelConfig& model, OptimizerKind kind) {
  TinyRun run;
  run.model = model;
  run.optim.optimizer = kind;
  run.lr = 3e-3;
  return run;
}

// Gated feed-forward, GQA in one weight, an untied head.
const std::vector<std::string> kDense = {"tp2",          "tp2sp",         "pp2",
                                         "dp2",          "dp2zero1",      "dp2zero2",
                                         "dp2zero3",     "dp3zero3",      "cp2,dp2zero1",
                                         "tp2sp,pp2",    "tp2,dp2zero3",  "dp4zero2,instances2",
                                         "pp2,dp2zero1", "tp2sp,dp3zero1"};

TEST(Muon, OfADenseModelGivesOneRanksAnswer) {
  TinyRun run = run_of(tiny_llama(), OptimizerKind::kMuon);
  expect_one_ranks_answer(run, kDense);
  run.optim.muon.tp_mode = MuonTpMode::kDistributed;
  run.optim.muon.nesterov = true;
  run.optim.muon.scale_mode = MuonScaleMode::kUnitRmsNorm;
  expect_one_ranks_answer(run, {"tp2", "tp2sp,dp2zero1", "tp2,pp2,dp2zero3"});
}

TEST(Muon, OfUnevenPartsGivesOneRanksAnswer) {
  TinyRun run = run_of(uneven_llama(), OptimizerKind::kMuon);
  run.optim.muon.split_qkv = false;
  run.optim.muon.scalar_optimizer = ScalarOptimizer::kLion;
  expect_one_ranks_answer(run, {"tp4sp", "tp4,dp2zero1", "dp5zero3"});
  run.optim.muon.tp_mode = MuonTpMode::kDistributed;
  run.optim.muon.split_qkv = true;
  expect_one_ranks_answer(run, {"tp4", "tp2sp,dp3zero2"});
}

TEST(Muon, OfExpertsGivesOneRanksAnswer) {
  TinyRun run = run_of(mixtral_like(), OptimizerKind::kMuon);
  const std::vector<std::string> layouts = {"dp2,ep2", "dp2zero3,ep2", "tp2sp,dp2,ep2",
                                            "pp2,dp4zero1,ep2", "tp2sp,dp2zero2,ep2,etp2"};
  expect_one_ranks_answer(run, layouts);
  run.model = deepseek_like();
  run.optim.muon.tp_mode = MuonTpMode::kDistributed;
  expect_one_ranks_answer(run, {"tp2sp,dp2,ep2,etp2", "pp2,dp2zero2,ep2"});
}

// A part of its own in each rank: another result on purpose, but the same on every ZeRO stage.
TEST(Muon, BlockwiseOrthogonalisesTheParts) {
  TinyRun run = run_of(tiny_llama(), OptimizerKind::kMuon);
  run.optim.muon.tp_mode = MuonTpMode::kBlockwise;
  expect_one_ranks_answer(run, {"pp2", "dp2zero3"});
  const LayoutAnswer whole = run_tiny(run);
  run.parallel = parse_layouts("tp2", {}).at(0);
  const LayoutAnswer parts = run_tiny(run);
  EXPECT_NE(answer_difference(whole, parts), "");
  run.parallel = parse_layouts("tp2,dp2zero2", {}).at(0);
  EXPECT_EQ(answer_difference(parts, run_tiny(run)), "");
}

TEST(Muon, LeavesTablesAndVectorsToTheScalarOptimizer) {
  TinyRun muon = run_of(tiny_gpt(), OptimizerKind::kMuon), adam = run_of(tiny_gpt(), {});
  muon.steps = adam.steps = 1;
  const LayoutAnswer with_muon = run_tiny(muon), with_adam = run_tiny(adam);
  for (const auto& [name, values] : with_adam.weights) {
    const bool hidden = name.find(".linear_") != std::string::npos && name.ends_with(".weight");
    EXPECT_EQ(values == with_muon.weights.at(name), !hidden) << name;
  }
}

TEST(Lion, GivesOneRanksAnswer) {
  TinyRun run = run_of(tiny_llama(), OptimizerKind::kLion);
  run.lr = 1e-4;
  expect_one_ranks_answer(run, {"tp2sp", "pp2,dp2zero1", "dp2zero3"});
}

TEST(Adafactor, GivesOneRanksAnswer) {
  expect_one_ranks_answer(run_of(tiny_llama(), OptimizerKind::kAdafactor), kDense);
  expect_one_ranks_answer(run_of(mixtral_like(), OptimizerKind::kAdafactor),
                          {"dp2zero3,ep2", "tp2sp,dp2,ep2,etp2"});
}

}  // namespace
}  // namespace bev::test
