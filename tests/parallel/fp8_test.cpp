// Linear layers in FP8: every recipe trains, and layouts give the result of one rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <mutex>

#include "kernels/activation.h"
#include "kernels/norm.h"
#include "models/families/family.h"
#include "tests/parallel/fp8_runs.h"

namespace bev::test {
namespace {

constexpr Fp8Scaling kRecipes[] = {Fp8Scaling::kTensorwise, Fp8Scaling::kDelayed,
                                   Fp8Scaling::kBlockwise};

TEST(Fp8, EveryRecipeIsNearTheModelsOwnPrecision) {
  for (Fp8Scaling recipe : kRecipes) {
    TinyRun run = fp8_run(recipe), plain = run;
    plain.fp8 = {};
    LayoutAnswer exact = run_tiny(plain), rounded = run_tiny(run);
    for (std::size_t i = 0; i < exact.losses.size(); ++i) {
      EXPECT_NEAR(rounded.losses[i], exact.losses[i], 0.03 * exact.losses[i])
          << static_cast<int>(recipe) << ", step " << i;
    }
    EXPECT_NE(rounded.losses[0], exact.losses[0]);
    double difference = largest_difference(exact.gradients, rounded.gradients).value;
    EXPECT_LT(difference, 0.3) << static_cast<int>(recipe);
    run.fp8.fp8_wgrad = false;
    EXPECT_NE(run_tiny(run).gradients, rounded.gradients);
  }
}

// DeepSeek-V3 has 576 latents and rotary keys: blocks at the ends of weights are ragged.
TEST(Fp8, RaggedBlocksAreNearTheModelsOwnPrecision) {
  TinyRun run = fp8_run(Fp8Scaling::kBlockwise);
  run.model = tiny_deepseek();
  run.model.num_layers = 2;
  run.model.hidden_size = 144;
  run.model.ffn_hidden_size = 256;
  run.model.num_attention_heads = run.model.num_query_groups = 4;
  run.model.q_lora_rank = 80;
  run.model.kv_lora_rank = 512;
  run.model.qk_head_dim = run.model.qk_pos_emb_head_dim = run.model.v_head_dim = 64;
  run.model.init_method_std = 0.05;
  ASSERT_THAT(run.fp8.problems(run.model, run.dtype, 2, 0), testing::IsEmpty());
  TinyRun plain = run, split = run;
  plain.fp8 = {};
  LayoutAnswer exact = run_tiny(plain), rounded = run_tiny(run);
  EXPECT_NE(rounded.losses[0], exact.losses[0]);
  for (std::size_t i = 0; i < exact.losses.size(); ++i) {
    EXPECT_NEAR(rounded.losses[i], exact.losses[i], 0.03 * exact.losses[i]) << "step " << i;
  }
  EXPECT_LT(largest_difference(exact.gradients, rounded.gradients).value, 0.3);
  split.parallel.tensor_model_parallel_size = 2;
  EXPECT_EQ(answer_difference(rounded, run_tiny(split), {0.02, 0, 1e-3}), "");
}

TEST(Fp4, EmulatedRecipesTrainAndLayoutsAgree) {
  for (Fp8Scaling recipe : {Fp8Scaling::kNvfp4, Fp8Scaling::kMxfp4}) {
    TinyRun run = fp8_run(recipe), plain = run;
    run.fp8 = plain.fp8 = {};
    run.fp8.fp4_format = Fp4FormatChoice::kE2m1;
    run.fp8.fp4_recipe = recipe;
    run.model.hidden_size = 64;
    run.model.ffn_hidden_size = 128;
    run.model.kv_channels = 32;
    plain.model = run.model;
    LayoutAnswer exact = run_tiny(plain), rounded = run_tiny(run);
    EXPECT_NE(rounded.losses[0], exact.losses[0]);
    for (std::size_t i = 0; i < exact.losses.size(); ++i) {
      EXPECT_NEAR(rounded.losses[i], exact.losses[i], 0.1 * exact.losses[i]) << "step " << i;
    }
    run.parallel.tensor_model_parallel_size = 2;
    run.parallel.sequence_parallel = true;
    EXPECT_EQ(answer_difference(rounded, run_tiny(run), {0.02, 0, 1e-3}), "");
  }
}

TEST(Fp8, RecomputingChangesNoBit) {
  for (Fp8Scaling recipe : kRecipes) {
    TinyRun run = fp8_run(recipe);
    LayoutAnswer kept = run_tiny(run);
    run.parallel.recompute_granularity = RecomputeGranularity::kSelective;
    run.parallel.recompute_modules = {"core_attn", "layernorm", "activation", "mlp"};
    EXPECT_EQ(run_tiny(run).weights, kept.weights) << static_cast<int>(recipe);
    run.parallel.recompute_granularity = RecomputeGranularity::kFull;
    EXPECT_EQ(run_tiny(run).weights, kept.weights) << static_cast<int>(recipe);
  }
}

// Number of tensors that kernels materialised in the steps of an engine.
struct Written {
  std::atomic<int> norms{0}, activations{0}, gradients{0};
};
Written written;

NormKernels watched_norms() {
  NormKernels table = cpu_kernels().norm;
  table.forward = [](const Stream& stream, const NormForwardArgs& args) {
    written.norms += !args.y.empty();
    cpu_kernels().norm.forward(stream, args);
  };
  return table;
}

ActivationKernels watched_activations() {
  ActivationKernels table = cpu_kernels().activation;
  table.forward = [](const Stream& stream, const ActivationForwardArgs& args) {
    written.activations += !args.y.empty();
    cpu_kernels().activation.forward(stream, args);
  };
  table.backward = [](const Stream& stream, const ActivationBackwardArgs& args) {
    written.gradients += !args.dx.empty();
    cpu_kernels().activation.backward(stream, args);
  };
  return table;
}

// Fused quantisation of norms and activations read only by FP8 GEMMs; the result of the final norm
// goes to the head.
TEST(Fp8, WhatIsOnlyRoundedIsNotWritten) {
  for (Fp8Scaling recipe : kRecipes) {
    for (bool in_rows : {false, true}) {
      SCOPED_TRACE(concat(static_cast<int>(recipe), in_rows ? ", weight gradients too" : ""));
      EngineOptions options;
      options.model = fp8_llama(recipe == Fp8Scaling::kBlockwise);
      options.fp8 = fp8_run(recipe).fp8;
      options.fp8.fp8_wgrad = in_rows;
      NormKernels norms = watched_norms();
      ActivationKernels activations = watched_activations();
      Kernels kernels = with_table(with_table(cpu_kernels(), norms), activations);
      written.norms = written.activations = written.gradients = 0;
      run_thread_ranks(1, {}, [&](World& world) {
        Engine engine(world, kernels, options);
        StepSamples samples = random_samples(options.model.vocab_size, 1, 11, 5);
        engine.train_step(rank_micro_batches(engine.model().ctx(), samples, 1), {1, 1e-3});
      });
      int layers = in_rows && recipe == Fp8Scaling::kBlockwise ? 0 : 2;
      EXPECT_EQ(written.norms, 1 + 2 * layers);
      EXPECT_EQ(written.activations, layers);
      EXPECT_EQ(written.gradients, layers);
    }
  }
}

// Gathering tokens in FP8 is equal to gathering first and quantising afterwards.
TEST(Fp8, SequenceParallelRanksComputeWhatTensorParallelOnesDo) {
  for (Fp8Scaling recipe : kRecipes) {
    TinyRun whole = fp8_run(recipe);
    whole.parallel.tensor_model_parallel_size = 2;
    whole.dtype = Dtype::kBf16;
    LayoutAnswer expected = run_tiny(whole);
    for (bool overlap : {false, true}) {
      // GEMMs of single blocks of rows sum in another order.
      if (overlap && recipe == Fp8Scaling::kBlockwise) continue;
      TinyRun parts = whole;
      parts.parallel.sequence_parallel = true;
      parts.parallel.tp_comm_overlap = overlap;
      EXPECT_EQ(run_tiny(parts).losses[0], expected.losses[0])
          << static_cast<int>(recipe) << (overlap ? ", overlap" : "");
    }
  }
}

TEST(Fp8, EndLayersStayInTheModelsPrecision) {
  TinyRun run = fp8_run(Fp8Scaling::kTensorwise), plain = run;
  plain.fp8 = {};
  run.fp8.first_last_layers_bf16 = true;
  EXPECT_EQ(run_tiny(run).losses, run_tiny(plain).losses);  // both layers are at an end
  run.fp8.num_layers_at_end_in_bf16 = 0;
  EXPECT_NE(run_tiny(run).losses, run_tiny(plain).losses);
}

struct Layout {
  const char* name;
  ParallelConfig parallel;
};

std::vector<Layout> layouts() {
  std::vector<Layout> out;
  auto add = [&](const char* name) -> ParallelConfig& {
    return out.emplace_back(Layout{name, {}}).parallel;
  };
  add("tp 2").tensor_model_parallel_size = 2;
  ParallelConfig& sp = add("tp 2, sp");
  sp.tensor_model_parallel_size = 2;
  sp.sequence_parallel = true;
  ParallelConfig& overlap = add("tp 2, sp, overlap");
  overlap.tensor_model_parallel_size = 2;
  overlap.sequence_parallel = overlap.tp_comm_overlap = true;
  add("pp 2").pipeline_model_parallel_size = 2;
  ParallelConfig& zero1 = add("dp 2, ZeRO-1");
  zero1.data_parallel_size = 2;
  zero1.data_parallel_sharding_strategy = ShardingStrategy::kOptim;
  ParallelConfig& zero3 = add("tp 2, dp 2, ZeRO-3");
  zero3.tensor_model_parallel_size = zero3.data_parallel_size = 2;
  zero3.data_parallel_sharding_strategy = ShardingStrategy::kOptimGradsParams;
  zero3.overlap_param_gather = zero3.overlap_grad_reduce = true;
  add("cp 2").context_parallel_size = 2;
  ParallelConfig& bubble = add("pp 2, tp 2, zero bubble");
  bubble.pipeline_model_parallel_size = bubble.tensor_model_parallel_size = 2;
  bubble.sequence_parallel = true;
  bubble.pipeline_schedule = PipelineSchedule::kZeroBubbleH1;
  return out;
}

// Sums in another order change the last bit of a value, and one in a hundred thousand such changes
// moves it to the next FP8 value, which shows in the gradient of a token; a scale that does not
// cover the whole tensor moves nearly all of them. The larger model has such values, and blocks of
// tokens differ if cp splits a sequence.
TEST(Fp8, LayoutsGiveOneRanksAnswer) {
  for (Fp8Scaling recipe : kRecipes) {
    TinyRun single = fp8_run(recipe);
    LayoutAnswer expected = run_tiny(single);
    for (const Layout& layout : layouts()) {
      SCOPED_TRACE(concat(static_cast<int>(recipe), ", ", layout.name));
      TinyRun run = single;
      run.parallel = layout.parallel;
      LayoutAnswer actual = run_tiny(run);
      double near = recipe == Fp8Scaling::kBlockwise ? 0.1 : 2e-3;
      EXPECT_EQ(answer_difference(expected, actual, {near, 0, 1e-3}), "");
      EXPECT_NEAR(actual.losses[0], expected.losses[0], 1e-3);
      for (std::size_t i = 1; i < expected.losses.size(); ++i) {
        EXPECT_NEAR(actual.losses[i], expected.losses[i], 0.01 * expected.losses[i]);
      }
    }
  }
}

// amax of x, weight and dy of each layer in one step.
std::map<std::string, std::vector<float>> amaxes_of(const TinyRun& run) {
  std::map<std::string, std::vector<float>> all;
  std::mutex mutex;
  with_engines(run, [&](Engine& engine) {
    StepSamples samples = random_samples(run.model.vocab_size, 4, 11, 5);
    engine.train_step(rank_micro_batches(engine.model().ctx(), samples, run.micro_batch_size),
                      {1, 1e-3});
    for (const AmaxHistory::Part& part : engine.model().store().amaxes().parts()) {
      std::vector<float> mine = engine.model().ctx().download<float>(part.memory);
      std::scoped_lock lock(mutex);
      std::vector<float>& known = all[part.name_and_shape->name];
      if (known.empty()) known = mine;
      EXPECT_EQ(known, mine) << part.name_and_shape->name;
    }
  });
  return all;
}

TEST(Fp8, LargestNumbersAreOfWholeTensors) {
  TinyRun single = fp8_run(Fp8Scaling::kDelayed);
  single.fp8.fp8_amax_history_len = 2;
  auto expected = amaxes_of(single);
  EXPECT_EQ(expected.size(), 16u);
  for (const Layout& layout : layouts()) {
    TinyRun run = single;
    run.parallel = layout.parallel;
    auto actual = amaxes_of(run);
    ASSERT_EQ(actual.size(), expected.size()) << layout.name;
    for (const auto& [name, values] : expected) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        EXPECT_NEAR(actual[name][i], values[i], 1e-4f * values[i]) << layout.name << ", " << name;
      }
    }
  }
}

// FP8 weights of all layers under their global names, of fresh engines.
std::map<std::string, std::vector<std::uint8_t>> weight_bytes(TinyRun run) {
  run.dtype = Dtype::kBf16;
  std::map<std::string, std::vector<std::uint8_t>> all;
  std::mutex mutex;
  with_engines(run, [&](Engine& engine) {
    for (const Param* param : engine.model().store().params()) {
      if (!param->fp8.used()) continue;
      Quantized value = engine.model().store().quantized(*param);
      const auto* bytes = value.rows.as<std::uint8_t>();
      const auto* turned = value.columns.as<std::uint8_t>();
      std::int64_t rows = param->local[0], columns = param->local[1];
      for (std::int64_t i = 0; i < rows * columns; ++i) {
        if (param->fp8.scaling == Fp8Scaling::kBlockwise) break;
        ASSERT_EQ(bytes[i], turned[i % columns * padded_rows(value.block, rows) + i / columns]);
      }
      std::scoped_lock lock(mutex);
      std::vector<std::uint8_t>& global = all[param->name];
      global.resize(static_cast<std::size_t>(param->shape.numel()));
      for (const ElementRun& run_of :
           element_runs(param->shape, param->split, part_of(param->split, engine.model().mesh()))) {
        std::copy_n(bytes + run_of.local, run_of.count, global.begin() + run_of.global);
      }
    }
  });
  return all;
}

TEST(Fp8, WeightsHaveTheSameBitsInEveryLayout) {
  for (Fp8Scaling recipe : kRecipes) {
    TinyRun single = fp8_run(recipe);
    auto expected = weight_bytes(single);
    EXPECT_EQ(expected.size(), 8u);
    for (const Layout& layout : layouts()) {
      TinyRun run = single;
      run.parallel = layout.parallel;
      EXPECT_TRUE(weight_bytes(run) == expected) << static_cast<int>(recipe) << ", " << layout.name;
    }
  }
}

// Each rank quantises its shard: the result is bitwise that of gathered values.
TEST(Fp8, GatheredPayloadsAreThoseOfGatheredValues) {
  for (Fp8Scaling recipe : {Fp8Scaling::kTensorwise, Fp8Scaling::kDelayed}) {
    for (std::int64_t tp : {1, 2}) {
      for (ShardingStrategy strategy : {ShardingStrategy::kOptim, ShardingStrategy::kOptimGrads,
                                        ShardingStrategy::kOptimGradsParams}) {
        TinyRun run = fp8_run(recipe);
        run.parallel.tensor_model_parallel_size = tp;
        run.parallel.data_parallel_size = tp == 1 ? 3 : 2;
        run.global_batch_size = 12;
        run.parallel.data_parallel_sharding_strategy = strategy;
        run.dtype = Dtype::kBf16;
        LayoutAnswer values = run_tiny(run);
        run.fp8.fp8_param_gather = true;
        LayoutAnswer payloads = run_tiny(run);
        EXPECT_EQ(payloads.losses, values.losses) << static_cast<int>(recipe) << ", tp " << tp;
        EXPECT_TRUE(payloads.weights == values.weights) << static_cast<int>(recipe);
        run.parallel.overlap_param_gather = true;
        EXPECT_EQ(run_tiny(run).losses, values.losses) << static_cast<int>(recipe);
      }
    }
  }
}

TEST(Fp8, SizesThatNoProductTakesAreNamed) {
  Fp8Config fp8;
  fp8.fp8_format = Fp8FormatChoice::kE4m3;
  EXPECT_TRUE(fp8.problems(fp8_llama(false), Dtype::kBf16, 2).empty());
  EXPECT_EQ(fp8.problems(tiny_llama(), Dtype::kBf16, 1).size(), 4u);
  EXPECT_EQ(fp8.problems(fp8_llama(false), Dtype::kBf16, 8).size(), 2u);
  EXPECT_EQ(fp8.problems(fp8_llama(false), Dtype::kF64, 1).size(), 1u);
  // The projections of MLA are linear layers too; a width that no layer has does not matter.
  EXPECT_TRUE(fp8.problems(preset("deepseek-v3"), Dtype::kBf16, 8).empty());
  Fp8Config blocks = fp8;
  blocks.fp8_recipe = Fp8Scaling::kBlockwise;
  EXPECT_TRUE(blocks.problems(preset("deepseek-v3"), Dtype::kBf16, 1).empty());
  EXPECT_TRUE(blocks.problems(preset("deepseek-v3"), Dtype::kBf16, 8, 1).empty());
  EXPECT_TRUE(blocks.problems(preset("qwen3-30b-a3b"), Dtype::kBf16, 1).empty());
  Fp8Config both = fp8;
  both.fp4_format = Fp4FormatChoice::kE2m1;
  EXPECT_EQ(both.problems(fp8_llama(false), Dtype::kBf16, 1).size(), 1u);
  fp8.first_last_layers_bf16 = true;
  EXPECT_EQ(fp8.problems(fp8_llama(false), Dtype::kBf16, 1).size(), 1u);
  fp8.fp8_recipe = Fp8Scaling::kBlockwise;
  fp8.fp8_param_gather = true;
  EXPECT_EQ(fp8.problems(fp8_llama(true), Dtype::kBf16, 2).size(), 1u);
  fp8.fp8_param_gather = false;
  EXPECT_TRUE(fp8.problems(fp8_llama(true), Dtype::kBf16, 2).empty());
  ModelConfig narrow = fp8_llama(true);
  narrow.num_query_groups = 1;  // its keys and values fill half a block on each rank
  EXPECT_TRUE(fp8.problems(narrow, Dtype::kBf16, 1).empty());
  EXPECT_EQ(fp8.problems(narrow, Dtype::kBf16, 2).size(), 1u);
  // The last block may be ragged, but not where ranks split a size.
  EXPECT_TRUE(fp8.problems(fp8_llama(false), Dtype::kBf16, 1).empty());
  EXPECT_THAT(fp8.problems(fp8_llama(false), Dtype::kBf16, 2),
              testing::Contains(testing::HasSubstr("must be a multiple of 256")));
}

}  // namespace
}  // namespace bev::test
