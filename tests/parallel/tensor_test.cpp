// Tensor parallelism: more ranks than key-value heads (GQA), and communication overlapped with
// GEMMs.
#include <gtest/gtest.h>

#include "tests/support/layouts.h"

namespace bev::test {
namespace {

ParallelConfig tensor_layout(std::int64_t tp, bool sequence_parallel, bool overlap) {
  ParallelConfig parallel;
  parallel.tensor_model_parallel_size = tp;
  parallel.sequence_parallel = sequence_parallel;
  parallel.tp_comm_overlap = overlap;
  return parallel;
}

TEST(TensorParallel, MoreRanksThanKeyValueHeadsGiveOneRanksAnswer) {
  for (std::int64_t kv_heads : {1, 2}) {
    for (bool awkward : {false, true}) {
      TinyRun single;
      single.model = tiny_llama();
      single.model.num_attention_heads = 8;
      single.model.num_query_groups = kv_heads;
      single.model.kv_channels = 8;
      if (awkward) {
        single.model.qk_layernorm = true;
        single.model.add_bias_linear = single.model.add_qkv_bias = true;
        single.model.attention_dropout = 0.2;
      }
      single.micro_batch_size = 4;
      LayoutAnswer expected = run_tiny(single);
      for (bool sequence_parallel : {false, true}) {
        SCOPED_TRACE(concat(kv_heads, " kv heads, awkward ", awkward, ", sp ", sequence_parallel));
        TinyRun run = single;
        run.parallel = tensor_layout(4, sequence_parallel, false);
        EXPECT_EQ(answer_difference(expected, run_tiny(run)), "");
        run.parallel.recompute_granularity = RecomputeGranularity::kFull;
        EXPECT_EQ(answer_difference(expected, run_tiny(run)), "");
      }
    }
  }
}

// GEMMs with other row counts may sum in another order, so results are not bitwise equal.
TEST(TensorParallel, OverlapGivesOneRanksAnswer) {
  for (std::int64_t length : {2, 3, 11}) {
    for (std::int64_t samples : {1, 4}) {
      TinyRun single;
      single.model = tiny_gpt();
      single.model.hidden_dropout = 0.2;
      single.sequence_length = length;
      single.global_batch_size = samples;
      single.micro_batch_size = samples;
      LayoutAnswer expected = run_tiny(single);
      for (std::int64_t tp : {2, 4}) {
        SCOPED_TRACE(concat(samples, " samples of ", length, " tokens, tp ", tp));
        TinyRun run = single;
        run.parallel = tensor_layout(tp, true, true);
        EXPECT_EQ(answer_difference(expected, run_tiny(run)), "");
        run.parallel.recompute_granularity = RecomputeGranularity::kSelective;
        run.parallel.recompute_modules = {"layernorm", "mlp"};
        EXPECT_EQ(answer_difference(expected, run_tiny(run)), "");
      }
    }
  }
}

TEST(TensorParallel, OverlapAgreesInBf16) {
  TinyRun run;
  run.model = tiny_gpt();
  run.dtype = Dtype::kBf16;
  run.steps = 1;
  run.parallel = tensor_layout(2, true, false);
  LayoutAnswer plain = run_tiny(run);
  run.parallel.tp_comm_overlap = true;
  LayoutAnswer overlapped = run_tiny(run);
  EXPECT_NEAR(overlapped.losses[0], plain.losses[0], 2e-3 * plain.losses[0]);
  TensorDifference gradients = largest_difference(plain.gradients, overlapped.gradients);
  EXPECT_LT(gradients.value, 2e-2) << "gradient of " << gradients.name;
}

}  // namespace
}  // namespace bev::test
