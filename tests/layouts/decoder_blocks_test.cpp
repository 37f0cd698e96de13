// What decoder families add to a block gives one rank's answer under every kind of split: gradients
// to 1e-11 and weights after three steps to 1e-9, in f64.
#include <gtest/gtest.h>

#include "tests/support/layouts.h"
#include "verify/layouts.h"

namespace bev::test {
namespace {

void expect_one_ranks_answer(const ModelConfig& model, const std::vector<std::string>& layouts) {
  TinyRun single;
  single.model = model;
  // Router losses depend on the micro-batch; nothing else depends on its size.
  single.micro_batch_size = model.moe.any() ? 1 : single.global_batch_size;
  LayoutAnswer expected = run_tiny(single);
  EXPECT_NE(expected.losses[0], expected.losses[2]);
  for (const std::string& layout : layouts) {
    TinyRun run = single;
    run.micro_batch_size = 1;
    run.parallel = parse_layouts(layout, {}).at(0);
    EXPECT_EQ(answer_difference(expected, run_tiny(run)), "") << layout;
  }
}

const std::vector<std::string> kDense = {"tp2",
                                         "tp2sp",
                                         "tp4sp",
                                         "pp2",
                                         "cp2p2p",
                                         "cp2a2a",
                                         "cp2allgather",
                                         "dp2zero3",
                                         "pp4,dp2",
                                         "tp2sp,pp2,dp2zero2",
                                         "tp2,cp2p2p,dp2zero3"};

// OLMo 2 and 3: norms after attention and MLP; sums of q and k over all of tp, where two ranks of
// four share a key head.
TEST(DecoderBlocks, NormsAfterAndOverTheWholeWidth) {
  ModelConfig model = tiny_llama();
  model.num_attention_heads = 8;
  model.num_query_groups = 2;
  model.kv_channels = 4;
  model.norm_placement = NormPlacement::kPost;
  model.qk_layernorm = true;
  model.qk_norm_kind = QkNorm::kWidth;
  expect_one_ranks_answer(model, kDense);
}

// Cohere 2 and Phi: one norm without bias for attention and MLP, layers without rotation, a bias of
// the head; Granite's residual multiplier.
TEST(DecoderBlocks, SharedNormHeadBiasAndMultiplier) {
  ModelConfig model = tiny_llama();
  model.num_attention_heads = 8;
  model.num_query_groups = 4;
  model.normalization = NormKind::kLayerNormWithoutBias;
  model.parallel_residual = true;
  model.norm_placement = NormPlacement::kShared;
  model.no_rope_layers = {0, 1, 0, 1};
  model.add_head_bias = true;
  model.residual_multiplier = 0.6;
  expect_one_ranks_answer(model, kDense);
}

// Llama 4: chunks, norms without weights after the rotation, queries that grow with the position.
TEST(DecoderBlocks, ChunksAndScaledQueries) {
  ModelConfig model = tiny_llama();
  model.num_attention_heads = 8;
  model.num_query_groups = 4;
  model.kv_channels = 4;
  model.window_size = 3;
  model.window_layers = {2, 2, 0, 1};
  model.no_rope_layers = {0, 0, 1, 0};
  model.qk_layernorm = true;
  model.qk_norm_kind = QkNorm::kUnitAfterRope;
  model.rope_scaling.queries = {0.4, 3, 1};
  expect_one_ranks_answer(model, kDense);
}

// Llama 4: the probability multiplies what the expert reads.
TEST(DecoderBlocks, ExpertsWithScaledInputs) {
  ModelConfig model = mixtral_like();
  model.moe.score_function = RouterScore::kSigmoid;
  model.moe.norm_topk_prob = false;
  model.moe.scale_input = true;
  model.moe.shared_expert_size = 12;
  expect_one_ranks_answer(model, {"tp2sp", "dp2,ep2", "dp2zero3,ep2", "tp2sp,dp2,ep2",
                                  "tp2sp,dp2zero2,ep2,etp2", "pp2,dp2"});
}

// ERNIE 4.5: softmax scores plus a bias choose.
TEST(DecoderBlocks, SoftmaxWithASelectionBias) {
  ModelConfig model = mixtral_like();
  model.moe.expert_bias = true;
  model.moe_training.bias_update_rate = 0.02;
  expect_one_ranks_answer(model, {"tp2sp", "dp2,ep2", "tp2sp,dp2zero3,ep2", "pp2,dp2"});
}

// DeepSeek-V3.2: weights of the indexer are kept by every layout, and do not train.
TEST(DecoderBlocks, IndexerIsKept) {
  ModelConfig model = deepseek_like();
  model.mtp_num_layers = 0;
  model.indexer = {16, 2, 6, {0, 1, 0, 1}};
  expect_one_ranks_answer(model, {"tp2sp", "pp2", "cp2p2p", "dp2zero3", "tp2,dp2zero1,ep2"});
}

}  // namespace
}  // namespace bev::test
