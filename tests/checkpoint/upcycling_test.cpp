// Upcycling of a dense model to experts: what they compute, equal under every layout.
#include "posttrain/upcycling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "backend/cpu/cpu_kernels.h"
#include "checkpoint/restore.h"
#include "checkpoint/step_folders.h"
#include "tests/checkpoint/saved_run.h"
#include "tests/support/expect_error.h"
#include "tests/support/logits.h"
#include "tests/support/temp_folder.h"

namespace bev::test {
namespace {

struct Case {
  const char* name;
  ModelConfig dense;
  MoeConfig moe;
  std::int64_t granularity = 1;

  ModelConfig model() const {
    ModelConfig out = dense;
    out.moe = moe;
    return out;
  }
};
void PrintTo(const Case& test, std::ostream* out) { *out << test.name; }

ModelConfig with_activation(ModelConfig model, Activation kind, bool gated) {
  model.activation = kind;
  model.gated = gated;
  return model;
}

MoeConfig experts(std::int64_t count, std::int64_t topk, std::int64_t ffn = 0) {
  MoeConfig moe;
  moe.num_experts = count;
  moe.topk = topk;
  moe.ffn_hidden_size = ffn;
  return moe;
}

// Probabilities that sum to 1 and, if MLPs are split, activations that commute with a positive
// factor.
std::vector<Case> cases() {
  std::vector<Case> list = {
      {"Copies", tiny_llama(), experts(5, 2)},
      {"CopiesWithBiases", tiny_gpt(), experts(6, 3)},
      {"Halves", with_activation(tiny_llama(), Activation::kRelu, true), experts(6, 2, 14), 2},
      {"QuartersWithBiases", with_activation(tiny_gpt(), Activation::kRelu, false),
       experts(8, 4, 10), 4},
      {"SquaredFifths", with_activation(tiny_gpt(), Activation::kSquaredRelu, false),
       experts(15, 10, 8), 5},
  };
  list[0].moe.layer_freq = {1, 0, 0, 1};
  list[2].moe.score_function = RouterScore::kSigmoid;
  list[2].moe.expert_bias = true;
  return list;
}

std::vector<double> logits_of(Engine& engine, const StepSamples& samples) {
  MicroBatch batch = make_micro_batch(engine.model().ctx(), samples, 0);
  return engine.model().ctx().download<double>(test::whole_logits(engine.model(), batch));
}

class Upcycling : public testing::TestWithParam<Case> {
 protected:
  // A dense run that has changed all its weights, biases too.
  std::string dense_run() {
    SavedRun run{.model = GetParam().dense, .save = folder_.path("dense")};
    EXPECT_EQ(train(run).saved.problem, "");
    return run.save;
  }
  NamedTensors upcycled(const std::string& dense, const std::string& layout) {
    SavedRun run{.model = GetParam().model(), .layout = layout, .first = 1, .last = 0};
    run.load = dense;
    run.save = folder_.path("upcycled-" + layout);
    run.with_optimizer = false;
    run.granularity = GetParam().granularity;
    EXPECT_EQ(train(run).saved.problem, "");
    return saved_tensors(run.save, 0);
  }
  TempFolder folder_;
};

TEST_P(Upcycling, LogitsAreThoseOfTheDenseModel) {
  std::string from = dense_run();
  run_thread_ranks(1, {60}, [&](World& world) {
    StepSamples samples = random_samples(GetParam().dense.vocab_size, 3, 11, 5);
    std::vector<std::vector<double>> logits;
    for (bool dense : {true, false}) {
      EngineOptions options;
      options.model = dense ? GetParam().dense : GetParam().model();
      options.dtype = Dtype::kF64;
      Engine engine(world, cpu_kernels(), options);
      if (dense) {
        CheckpointReader reader(step_folder(from, 3));
        restore_tensors(engine, reader, false);
      } else {
        upcycle(engine, GetParam().granularity, {.load = from});
      }
      logits.push_back(logits_of(engine, samples));
    }
    for (std::size_t i = 0; i < logits[0].size(); ++i) {
      ASSERT_NEAR(logits[0][i], logits[1][i], 1e-12 * std::max(1.0, std::abs(logits[0][i])));
    }
  });
}

TEST_P(Upcycling, EveryLayoutHasOneRanksWeights) {
  std::string from = dense_run();
  NamedTensors expected = upcycled(from, "");
  for (const char* layout : {"tp2sp,ep2,etp1,pp2", "dp4zero3,ep2,etp2", "pp4,dp2zero1,ep2"}) {
    EXPECT_EQ(expected, upcycled(from, layout)) << layout;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, Upcycling, testing::ValuesIn(cases()),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(UpcyclingRules, TheRouterIsFreshAndPartsOfAnMlpShareARow) {
  TempFolder folder;
  const Case test = cases()[3];
  SavedRun dense{.model = test.dense, .save = folder.path("dense")};
  train(dense);
  SavedRun run{.model = test.model(), .first = 1, .last = 0, .with_optimizer = false};
  run.save = folder.path("fresh");
  train(run);
  run.load = dense.save;
  run.save = folder.path("upcycled");
  run.granularity = 4;
  train(run);
  NamedTensors fresh = saved_tensors(folder.path("fresh"), 0);
  NamedTensors upcycled = saved_tensors(run.save, 0);
  const std::string name = "decoder.layers.1.mlp.router.weight";
  std::size_t columns = fresh[name].size() / 8;
  for (std::size_t i = 0; i < fresh[name].size(); ++i) {
    EXPECT_EQ(upcycled[name][i], fresh[name][i / columns / 4 * columns + i % columns]);
  }
}

TEST(UpcyclingRules, WhatDoesNotFitIsSaidBeforeAnythingChanges) {
  ModelConfig model = tiny_llama();  // ffn_hidden_size 28
  EXPECT_THAT(upcycling_problems(model, 1), testing::ElementsAre(testing::HasSubstr("no experts")));
  model.moe = experts(6, 2, 7);
  EXPECT_THAT(upcycling_problems(model, 2),
              testing::ElementsAre(testing::HasSubstr("use --moe-ffn-hidden-size 14")));
  EXPECT_THAT(upcycling_problems(model, 4),
              testing::ElementsAre(testing::HasSubstr("do not divide --num-experts 6")));
  EXPECT_THAT(upcycling_problems(model, 3),
              testing::ElementsAre(testing::HasSubstr("use a granularity that divides 28")));
  model.moe.num_experts = 8;
  EXPECT_TRUE(upcycling_problems(model, 4).empty());

  // A checkpoint of other sizes, and one that already has experts.
  TempFolder folder;
  SavedRun dense{.model = tiny_gpt(), .save = folder.path("gpt")};
  train(dense);
  SavedRun run{.model = model, .first = 1, .last = 0, .load = dense.save, .granularity = 4};
  expect_error(ErrorKind::kInput, {"do not fit", "linear_fc1.weight"}, [&] { train(run); });
  SavedRun moe{.model = model, .save = folder.path("moe")};
  train(moe);
  run.load = moe.save;
  expect_error(ErrorKind::kInput,
               {"mlp.experts.linear_fc1.weight is in the checkpoint and not in the model"},
               [&] { train(run); });
}

}  // namespace
}  // namespace bev::test
