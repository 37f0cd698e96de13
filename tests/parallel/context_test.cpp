// Context parallelism gives the result of one rank, with every communication type.
#include <gtest/gtest.h>

#include "tests/support/layouts.h"

namespace bev::test {
namespace {

ModelConfig awkward_gpt() {
  ModelConfig model = tiny_gpt();
  model.hidden_dropout = 0.2;
  model.attention_dropout = 0.3;
  return model;
}

// GQA, sliding windows in some layers, soft-capped scores, QK norm.
ModelConfig awkward_llama() {
  ModelConfig model = tiny_llama();
  model.num_attention_heads = 8;
  model.num_query_groups = 4;
  model.attention_dropout = 0.1;
  model.window_size = 3;
  model.window_layers = {1, 0, 1, 0};
  model.attn_logit_softcapping = 5;
  model.qk_layernorm = true;
  return model;
}

struct ContextCase {
  std::string name;
  std::int64_t cp;
  std::vector<std::string> types;
  std::vector<std::int64_t> sizes;
};
const ContextCase kCases[] = {
    {"p2p 2", 2, {"p2p"}, {}},
    {"allgather 2", 2, {"allgather"}, {}},
    {"a2a 2", 2, {"a2a"}, {}},
    {"p2p 3", 3, {"p2p"}, {}},
    {"allgather 3", 3, {"allgather"}, {}},
    {"p2p 4", 4, {"p2p"}, {}},
    {"a2a 4", 4, {"a2a"}, {}},
    {"a2a+p2p 2 x 2", 4, {"a2a+p2p"}, {2, 2}},
    {"a2a+p2p 1 x 2", 2, {"a2a+p2p"}, {1, 2}},
    {"a2a+p2p 2 x 1", 2, {"a2a+p2p"}, {2, 1}},
    {"by layer", 4, {"a2a", "p2p", "a2a+p2p", "allgather"}, {2, 2}},
};

ParallelConfig context_layout(const ContextCase& test) {
  ParallelConfig parallel;
  parallel.context_parallel_size = test.cp;
  parallel.cp_comm_type = test.types;
  parallel.hierarchical_context_parallel_sizes = test.sizes;
  return parallel;
}

void expect_same(const LayoutAnswer& expected, const TinyRun& run) {
  EXPECT_EQ(answer_difference(expected, run_tiny(run)), "");
}

TEST(ContextParallel, EveryExchangeGivesOneRanksAnswer) {
  for (const ModelConfig& model :
       {awkward_gpt(), awkward_llama(), tiny_deepseek(), tiny_gpt_oss()}) {
    TinyRun single;
    single.model = model;
    single.micro_batch_size = 4;
    single.steps = 2;
    LayoutAnswer expected = run_tiny(single);
    for (const ContextCase& test : kCases) {
      SCOPED_TRACE(model.family + " " + test.name);
      TinyRun run = single;
      run.parallel = context_layout(test);
      run.micro_batch_size = 2;
      expect_same(expected, run);
      run.parallel.recompute_granularity = RecomputeGranularity::kSelective;
      run.parallel.recompute_modules = {"core_attn"};
      expect_same(expected, run);
    }
  }
}

// Chunks without tokens, ranks without tokens, ranks whose targets are all ignored.
TEST(ContextParallel, ShortSequencesGiveOneRanksAnswer) {
  for (std::int64_t length : {2, 3, 5, 9}) {
    TinyRun single;
    single.model = awkward_gpt();
    single.sequence_length = length;
    single.micro_batch_size = 4;
    single.steps = 1;
    LayoutAnswer expected = run_tiny(single);
    for (const ContextCase& test : kCases) {
      SCOPED_TRACE(concat(test.name, ", ", length, " tokens"));
      TinyRun run = single;
      run.parallel = context_layout(test);
      expect_same(expected, run);
    }
  }
}

void expect_joins_the_other_axes(const ModelConfig& model) {
  TinyRun single;
  single.model = model;
  single.micro_batch_size = 4;
  single.steps = 2;
  LayoutAnswer expected = run_tiny(single);
  for (const char* type : {"p2p", "a2a", "allgather"}) {
    for (int other = 0; other < 4; ++other) {
      SCOPED_TRACE(concat(type, ", case ", other));
      TinyRun run = single;
      run.micro_batch_size = 1;
      run.parallel.context_parallel_size = 2;
      run.parallel.cp_comm_type = {type};
      if (other == 0) run.parallel.tensor_model_parallel_size = 2;
      if (other == 1) {
        run.parallel.tensor_model_parallel_size = 2;
        run.parallel.sequence_parallel = true;
        run.parallel.pipeline_model_parallel_size = 2;
      }
      if (other >= 2) {
        run.parallel.data_parallel_size = 2;
        run.parallel.data_parallel_sharding_strategy =
            other == 2 ? ShardingStrategy::kOptim : ShardingStrategy::kOptimGradsParams;
      }
      expect_same(expected, run);
    }
  }
}

TEST(ContextParallel, JoinsTheOtherAxes) {
  for (const ModelConfig& model : {awkward_llama(), tiny_deepseek(), tiny_gpt_oss()}) {
    SCOPED_TRACE(model.family);
    expect_joins_the_other_axes(model);
  }
}

TEST(ContextParallel, Bf16AgreesToItsRounding) {
  TinyRun single;
  single.model = tiny_llama();
  single.dtype = Dtype::kBf16;
  single.steps = 1;
  LayoutAnswer expected = run_tiny(single);
  for (const ContextCase& test : kCases) {
    if (test.cp > 2) continue;
    SCOPED_TRACE(test.name);
    TinyRun run = single;
    run.parallel = context_layout(test);
    LayoutAnswer actual = run_tiny(run);
    EXPECT_NEAR(actual.losses[0], expected.losses[0], 2e-3 * expected.losses[0]);
    TensorDifference gradients = largest_difference(expected.gradients, actual.gradients);
    EXPECT_LT(gradients.value, 5e-2) << "gradient of " << gradients.name;
  }
}

}  // namespace
}  // namespace bev::test
