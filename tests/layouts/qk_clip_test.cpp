// QK-clip and the largest attention logits: bounded as the formula says, and the same under every
// layout in f64.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/layouts.h"
#include "verify/layouts.h"

namespace bev::test {
namespace {

constexpr const char* kMaxLogit = "max attention logit";

TinyRun run_of(const ModelConfig& model, double threshold) {
  TinyRun run;
  run.model = model;
  run.max_attention_logit = true;
  run.optim.qk.qk_clip = threshold > 0;
  if (threshold > 0) run.optim.qk.threshold = threshold;
  return run;
}

// One layer, whose logits depend on its own weights alone, the same batch in every step, and no
// other updates.
TinyRun still_run(ModelConfig model, double threshold) {
  model.num_layers = 1;
  TinyRun run = run_of(model, threshold);
  run.lr = 0.0;
  run.samples = [](std::uint64_t) { return random_samples(53, 4, 11, 5); };
  return run;
}

TEST(QkClip, ScalesTheLargestLogitToTheThreshold) {
  for (const ModelConfig& model : {tiny_llama(), tiny_deepseek()}) {
    const std::vector<double> plain = run_tiny(still_run(model, 0)).reports.at(kMaxLogit);
    EXPECT_EQ(plain[0], plain[2]);
    for (double part : {0.3, 0.9}) {
      const double threshold = part * plain[0];
      const LayoutAnswer clipped = run_tiny(still_run(model, threshold));
      const std::vector<double>& logits = clipped.reports.at(kMaxLogit);
      EXPECT_EQ(logits[0], plain[0]);
      EXPECT_NEAR(logits[1], threshold, 1e-12 * threshold);
      EXPECT_NEAR(logits[2], threshold, 1e-12 * threshold);
    }
    // Nothing is above this threshold.
    EXPECT_EQ(run_tiny(still_run(model, 1.01 * plain[0])).weights,
              run_tiny(still_run(model, 0)).weights);
  }
}

// The ratio of two values of each row of a weight; 1 where both are 0.
std::vector<double> row_ratios(const std::vector<double>& after, const std::vector<double>& before,
                               std::size_t rows) {
  const std::size_t columns = before.size() / rows;
  std::vector<double> ratios;
  for (std::size_t row = 0; row < rows; ++row) {
    const double ratio = after[row * columns] / before[row * columns];
    for (std::size_t i = row * columns; i < (row + 1) * columns; ++i) {
      EXPECT_NEAR(after[i], ratio * before[i], 1e-15);
    }
    ratios.push_back(ratio);
  }
  return ratios;
}

// Every group of heads with its own eta: queries by eta^alpha, keys by eta^(1 - alpha), values not.
TEST(QkClip, DividesTheScalingBetweenQueriesAndKeys) {
  const ModelConfig model = tiny_llama();  // 6 query heads and 2 key heads of 6
  TinyRun run = still_run(model, 0), clipped = still_run(model, 1e-3);
  run.steps = clipped.steps = 1;
  clipped.optim.qk.alpha = 0.25;
  const std::string name = "decoder.layers.0.self_attention.linear_qkv.weight";
  const std::vector<double> ratios =
      row_ratios(run_tiny(clipped).weights.at(name), run_tiny(run).weights.at(name), 60);
  for (std::size_t group = 0; group < 2; ++group) {
    const double query = ratios[18 * group], key = ratios[36 + 6 * group];
    EXPECT_LT(query, 0.9);
    EXPECT_NEAR(std::pow(query, 3), key, 1e-12);
    for (std::size_t i = 0; i < 18; ++i) EXPECT_NEAR(ratios[18 * group + i], query, 1e-12);
    for (std::size_t i = 0; i < 6; ++i) EXPECT_NEAR(ratios[36 + 6 * group + i], key, 1e-12);
  }
  EXPECT_NE(ratios[0], ratios[18]);
  for (std::size_t i = 48; i < 60; ++i) EXPECT_EQ(ratios[i], 1);
}

// Latent attention: dims without rotation are shared out, rotated dims of queries take all.
TEST(QkClip, ScalesRotatedQueriesOfLatentAttentionByAll) {
  const ModelConfig model = tiny_deepseek();  // 8 heads of 5 + 4, values of 6
  TinyRun run = still_run(model, 0), clipped = still_run(model, 1e-3);
  run.steps = clipped.steps = 1;
  const NamedTensors before = run_tiny(run).weights, after = run_tiny(clipped).weights;
  const std::string layer = "decoder.layers.0.self_attention.";
  const std::string q = layer + "linear_q_up_proj.weight", kv = layer + "linear_kv_up_proj.weight";
  const std::vector<double> queries = row_ratios(after.at(q), before.at(q), 8 * 9);
  const std::vector<double> keys = row_ratios(after.at(kv), before.at(kv), 8 * 11);
  for (std::size_t head = 0; head < 8; ++head) {
    const double eta = queries[9 * head + 5];
    EXPECT_LT(eta, 0.9);
    for (std::size_t i = 0; i < 9; ++i) {
      EXPECT_NEAR(queries[9 * head + i], i < 5 ? std::sqrt(eta) : eta, 1e-12);
    }
    for (std::size_t i = 0; i < 11; ++i) {
      EXPECT_NEAR(keys[11 * head + i], i < 5 ? std::sqrt(eta) : 1, 1e-12);
    }
  }
  for (const auto& [name, values] : before) {
    EXPECT_EQ(values == after.at(name), name != q && name != kv) << name;
  }
}

void expect_one_ranks_answer(const TinyRun& single, const std::vector<std::string>& layouts) {
  const LayoutAnswer expected = run_tiny(single);
  TinyRun free = single;
  free.optim.qk.qk_clip = false;
  EXPECT_NE(answer_difference(expected, run_tiny(free)), "");
  for (const std::string& layout : layouts) {
    TinyRun run = single;
    run.parallel = parse_layouts(layout, {}).at(0);
    EXPECT_EQ(answer_difference(expected, run_tiny(run)), "") << layout;
  }
}

const std::vector<std::string> kLayouts = {"tp2sp",
                                           "pp2",
                                           "cp2p2p",
                                           "cp2a2a",
                                           "cp2allgather",
                                           "dp2zero1",
                                           "dp3zero2",
                                           "dp2zero3",
                                           "tp2sp,pp2,dp2zero2",
                                           "tp2,cp2p2p,dp2zero3"};

TEST(QkClip, OfAnyLayoutIsThatOfOneRank) {
  TinyRun muon = run_of(tiny_llama(), 0.2);
  muon.optim.optimizer = OptimizerKind::kMuon;
  muon.lr = 3e-3;
  expect_one_ranks_answer(muon, kLayouts);
  TinyRun latent = run_of(tiny_deepseek(), 0.05);
  latent.parallel.recompute_granularity = RecomputeGranularity::kFull;
  expect_one_ranks_answer(latent, kLayouts);
}

// Two ranks share a key head: its group has heads on both.
TEST(QkClip, FindsTheLogitsOfAGroupOnAllItsRanks) {
  ModelConfig model = uneven_llama();
  model.qk_layernorm = false;
  expect_one_ranks_answer(run_of(model, 0.1), {"tp4sp", "tp8", "tp4,dp2zero3"});
  ModelConfig sinks = tiny_gpt_oss();  // sinks, windows
  sinks.mtp_num_layers = 1;
  expect_one_ranks_answer(run_of(sinks, 0.1), {"tp2sp,cp2p2p", "cp2a2a,pp2"});
}

}  // namespace
}  // namespace bev::test
