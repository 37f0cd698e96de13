// Resharding: saved under one layout, loaded under another, a run continues unchanged.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/checkpoint/saved_run.h"
#include "tests/support/temp_folder.h"

namespace bev::test {
namespace {

struct Case {
  const char* name;
  ModelConfig (*model)();
  std::vector<std::string> layouts;
  OptimizerKind optimizer = OptimizerKind::kAdamW;

  SavedRun run() const {
    SavedRun run{.model = model()};
    run.optim.optimizer = optimizer;
    return run;
  }
};

// Embedding weights on three stages, and f32 expert biases.
ModelConfig with_depths() {
  ModelConfig model = tiny_gpt();
  model.num_layers = 3;
  model.mtp_num_layers = 2;
  model.moe.num_experts = 5;
  model.moe.score_function = RouterScore::kSigmoid;
  model.moe.expert_bias = true;
  model.moe_training.bias_update_rate = 0.1;
  return model;
}

// The gradient of a key's bias is rounding alone, which Adafactor would scale up to whole steps.
ModelConfig with_depths_without_biases() {
  ModelConfig model = with_depths();
  model.add_bias_linear = false;
  return model;
}

// Tied embeddings on two stages, sizes that do not divide, shards that end within rows, replicas.
const Case kCases[] = {
    {"Gpt",
     uneven_gpt,
     {"", "dp8zero3", "tp2,pp2,vpp2,dp2zero1", "tp4sp,dp2zero3", "pp4,dp2", "cp2,tp2,dp2zero2",
      "dp4zero1instances2,tp2", "tp8"}},
    {"Llama",
     uneven_llama,
     {"", "dp8", "tp4sp,pp2", "pp4zbv,dp2zero1", "cp4,dp2zero3",
      "tp2,dp4zero2instances2paramoverlap", "dp3zero3,tp2", "pp3,dp2zero1"}},
    {"Depths",
     with_depths,
     {"", "pp4[Et|tt|mm|L],dp2zero3,ep2", "tp2sp,pp3[Ettt|m|mL]", "dp4zero1,ep2"}},
    {"Muon", uneven_llama, {"", "tp4sp,dp2zero3", "pp2,dp3zero1", "dp2"}, OptimizerKind::kMuon},
    {"MuonOfExperts",
     with_depths,
     {"", "dp4zero1,ep2", "tp2sp,pp3[Ettt|m|mL]"},
     OptimizerKind::kMuon},
    {"Adafactor",
     with_depths_without_biases,
     {"", "pp4[Et|tt|mm|L],dp2zero3,ep2", "tp2sp,dp3zero1"},
     OptimizerKind::kAdafactor},
};

void PrintTo(const Case& test, std::ostream* out) { *out << test.name; }

class Reshard : public testing::TestWithParam<Case> {
 protected:
  void expect_same(const std::vector<double>& expected, const std::vector<double>& actual) {
    ASSERT_EQ(expected.size(), actual.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_NEAR(expected[i], actual[i], 1e-9 * std::abs(expected[i]));
    }
  }
  // Continues a checkpoint saved under `from` with layout `to`.
  void check(const std::string& from, const std::string& to) {
    SCOPED_TRACE("from '" + from + "' to '" + to + "'");
    TempFolder folder;
    SavedRun run = GetParam().run();
    run.layout = to;
    run.first = 4;
    run.last = 6;
    run.load = saved(from);
    run.save = folder.path();
    SavedAnswer answer = train(run);
    EXPECT_EQ(answer.saved.problem, "");
    expect_same(reference_.losses, answer.losses);
    TensorDifference worst = largest_difference(weights_, saved_tensors(folder.path(), 6), 1e-6);
    EXPECT_LE(worst.value, 1e-9) << worst.name;
  }
  std::string saved(const std::string& layout) {
    std::string folder = folder_.path("from-" + layout);
    if (!std::filesystem::exists(folder)) {
      SavedRun run = GetParam().run();
      run.layout = layout;
      run.save = folder;
      EXPECT_EQ(train(run).saved.problem, "");
    }
    return folder;
  }
  void SetUp() override {
    SavedRun run = GetParam().run();
    run.first = 4;
    run.last = 6;
    run.load = saved("");
    run.save = folder_.path("reference");
    reference_ = train(run);
    weights_ = saved_tensors(run.save, 6);
    SavedRun whole = GetParam().run();
    whole.last = 6;
    whole.save = folder_.path("whole");
    std::vector<double> losses = train(whole).losses;
    // Bit-equal runs.
    EXPECT_EQ(std::vector<double>(losses.begin() + 3, losses.end()), reference_.losses);
    EXPECT_TRUE(saved_tensors(whole.save, 6) == weights_);
  }

  TempFolder folder_;
  SavedAnswer reference_;
  NamedTensors weights_;
};

// Each layout once as source and once as target; make test-full runs the full product.
TEST_P(Reshard, EveryLayoutLoadsAnother) {
  const std::vector<std::string>& layouts = GetParam().layouts;
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    check(layouts[i], layouts[(i + 1) % layouts.size()]);
  }
}

TEST_P(Reshard, DISABLED_EveryLayoutLoadsEveryOther) {
  for (const std::string& from : GetParam().layouts) {
    for (const std::string& to : GetParam().layouts) check(from, to);
  }
}

TEST_P(Reshard, SaveLoadSaveIsByteIdentical) {
  for (const std::string& layout : GetParam().layouts) {
    SCOPED_TRACE(layout);
    TempFolder again;
    SavedRun run = GetParam().run();
    run.layout = layout;
    run.first = 4;
    run.last = 3;
    run.load = saved(layout);
    run.save = again.path();
    EXPECT_EQ(train(run).saved.problem, "");
    EXPECT_EQ(differing_files(run.load, run.save), std::vector<std::string>());
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Reshard, testing::ValuesIn(kCases),
                         [](const auto& test) { return std::string(test.param.name); });

// A run of six iterations, and one that saves after three and continues.
struct Halves {
  std::string half, whole;     // folders
  std::vector<double> losses;  // of the last three iterations
  SavedRun rest;               // the continuation to train
};
Halves train_halves(const SavedRun& run, const TempFolder& folder) {
  SavedRun half = run, whole = run, rest = run;
  half.save = rest.load = folder.path("half");
  train(half);
  whole.last = rest.last = 6;
  whole.save = folder.path("whole");
  std::vector<double> losses = train(whole).losses;
  rest.first = 4;
  rest.save = folder.path("rest");
  return {half.save, whole.save, {losses.begin() + 3, losses.end()}, rest};
}

// Delayed scaling depends on earlier steps, so it is part of the state.
TEST(ReshardFp8, DelayedScalesGoOnAsTheyWere) {
  TempFolder folder;
  SavedRun run{.model = tiny_llama(), .dtype = Dtype::kBf16};
  run.model.num_layers = 2;
  run.model.hidden_size = 32;
  run.model.num_attention_heads = 4;
  run.model.kv_channels = 16;
  run.model.ffn_hidden_size = 64;
  run.fp8.fp8_format = Fp8FormatChoice::kHybrid;
  run.fp8.fp8_recipe = Fp8Scaling::kDelayed;
  run.fp8.fp8_amax_history_len = 3;
  run.fp8.fp8_amax_compute_algo = AmaxChoice::kMax;
  run.fp8.fp8_interval = 2;
  auto [half, whole, losses, rest] = train_halves(run, folder);
  EXPECT_EQ(train(rest).losses, losses);
  NamedTensors expected = saved_tensors(whole, 6);
  EXPECT_TRUE(saved_tensors(rest.save, 6) == expected);
  EXPECT_EQ(expected.count("fp8.amax_history/decoder.layers.1.mlp.linear_fc2.weight"), 1u);
  for (const char* layout : {"tp2sp,dp2zero1", "pp2,dp2zero3", "cp2"}) {
    rest.layout = layout;
    std::vector<double> others = train(rest).losses;
    for (std::size_t i = 0; i < others.size(); ++i) {
      EXPECT_NEAR(others[i], losses[i], 0.02 * losses[i]) << layout << ", step " << i;
    }
  }
  // A run in another precision takes the weights and ignores the scales, and vice versa.
  SavedRun plain = run;
  plain.fp8 = {};
  plain.load = half;
  plain.first = plain.last = 4;
  plain.save = folder.path("plain");
  EXPECT_EQ(train(plain).losses.size(), 1u);
  SavedRun back = run;
  back.load = plain.save;
  back.first = back.last = 5;
  EXPECT_EQ(train(back).losses.size(), 1u);
}

// Where state is kept, and in how many bits, is not part of the format: the files are equal, and a
// run continues with any part of it on the host.
TEST(ReshardMoments, OffloadAndFp8GoOnAsTheyWere) {
  for (const char* layout : {"", "tp2sp,pp2,dp2zero1", "dp3zero3"}) {
    SCOPED_TRACE(layout);
    TempFolder folder;
    SavedRun run{.model = uneven_gpt(), .layout = layout, .dtype = Dtype::kBf16};
    run.optim.dtypes.exp_avg = run.optim.dtypes.exp_avg_sq = Dtype::kU8;
    auto [half, whole, losses, rest] = train_halves(run, folder);
    SavedRun same = run;
    rest.optim.optimizer_cpu_offload = true;
    rest.optim.optimizer_offload_fraction = 0.5;
    EXPECT_EQ(train(rest).losses, losses);
    EXPECT_TRUE(saved_tensors(rest.save, 6) == saved_tensors(whole, 6));
    same.first = 4;
    same.load = half;
    same.save = folder.path("same");
    same.optim.optimizer_cpu_offload = true;
    train(same);
    EXPECT_EQ(differing_files(half, same.save), std::vector<std::string>());
  }
}

// Blocks depend on the layout, so values are rounded again; f32 state interoperates.
TEST(ReshardMoments, Fp8LoadsUnderOtherLayoutsAndDtypes) {
  TempFolder folder;
  SavedRun run{.model = uneven_gpt(), .layout = "tp2,dp2zero1", .dtype = Dtype::kBf16};
  run.optim.dtypes.exp_avg = run.optim.dtypes.exp_avg_sq = Dtype::kU8;
  run.save = folder.path("fp8");
  train(run);
  SavedRun next = run;
  next.first = 4;
  next.last = 6;
  next.load = run.save;
  next.save = {};
  std::vector<double> expected = train(next).losses;
  auto expect_close = [&](const SavedRun& other) {
    std::vector<double> losses = train(other).losses;
    for (std::size_t i = 0; i < losses.size(); ++i) {
      EXPECT_NEAR(losses[i], expected[i], 0.02 * expected[i]) << other.layout << ", step " << i;
    }
  };
  for (const char* layout : {"", "pp2,dp3zero3", "tp4sp"}) {
    next.layout = layout;
    expect_close(next);
  }
  next.optim.dtypes = {};
  next.save = folder.path("f32");
  expect_close(next);
  SavedRun back = run;
  back.load = next.save;
  back.first = back.last = 7;
  back.save = {};
  EXPECT_EQ(train(back).losses.size(), 1u);
}

}  // namespace
}  // namespace bev::test
