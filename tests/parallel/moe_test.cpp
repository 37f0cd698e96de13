// MoE under layouts: router losses, loads and expert biases count whole micro-batches and the whole
// global batch, however these are split.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/layouts.h"

namespace bev::test {
namespace {

// Biases everywhere, no gated activation, a gated shared expert, more experts than tokens.
ModelConfig many_experts() {
  ModelConfig model = tiny_gpt();
  model.moe.num_experts = 40;
  model.moe.topk = 4;
  model.moe.pre_softmax = true;
  model.moe.router_bias = true;
  model.moe.shared_expert_size = 12;
  model.moe.shared_expert_gate = true;
  model.hidden_dropout = 0.2;
  return model;
}

// Every loss at once, over more micro-batches than ranks, with jitter on the router input.
ModelConfig balanced() {
  ModelConfig model = deepseek_like();
  model.moe.layer_freq = {1, 0, 1, 1};
  model.moe_training.load_balancing = {"global_aux_loss", "seq_aux_loss", "aux_loss"};
  model.moe_training.aux_loss_coeff = {0.4, 0.1, 0.2};
  model.moe_training.z_loss_coeff = 0.01;
  model.moe_training.input_jitter_eps = 0.1;
  model.moe_training.router_dtype = RouterDtype::kF32;
  return model;
}

ModelConfig sinkhorn() {
  ModelConfig model = mixtral_like();
  model.moe_training.load_balancing = {"sinkhorn"};
  model.moe_training.aux_loss_coeff = {0};
  return model;
}

ModelConfig random_choices() {
  ModelConfig model = many_experts();
  model.moe_training.force_load_balancing = true;
  return model;
}

using Change = void (*)(ParallelConfig&);

void expect_one_ranks_answer(const TinyRun& single, const std::vector<Change>& layouts) {
  LayoutAnswer expected = run_tiny(single);
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    TinyRun run = single;
    layouts[i](run.parallel);
    EXPECT_EQ(answer_difference(expected, run_tiny(run)), "") << "layout " << i;
  }
}

void expect_same_bits(const LayoutAnswer& expected, const LayoutAnswer& actual) {
  EXPECT_EQ(expected.losses, actual.losses);
  EXPECT_EQ(expected.grad_norms, actual.grad_norms);
  for (auto tensors : {&LayoutAnswer::gradients, &LayoutAnswer::weights}) {
    TensorDifference worst = largest_difference(expected.*tensors, actual.*tensors);
    EXPECT_EQ(worst.value, 0) << worst.name;
  }
}

// Under every layout, with these parts saved and recomputed.
TEST(Moe, SharedExpertsAndHeadsOfLatentsAreTheSameBitsWhenMadeAgain) {
  const std::vector<Change> layouts = {
      [](ParallelConfig&) {},
      [](ParallelConfig& p) {
        p.tensor_model_parallel_size = 2;
        p.sequence_parallel = true;
        p.data_parallel_size = 2;
        p.expert_model_parallel_size = 2;
        p.data_parallel_sharding_strategy = ShardingStrategy::kOptimGradsParams;
        p.moe_shared_expert_overlap = true;
      },
      [](ParallelConfig& p) {
        p.context_parallel_size = 2;
        p.cp_comm_type = {"a2a"};
        p.pipeline_model_parallel_size = 2;
        p.pipeline_schedule = PipelineSchedule::kZeroBubbleH1;
      },
      [](ParallelConfig& p) { p.context_parallel_size = 2; },
  };
  for (const ModelConfig& model : {deepseek_like(), many_experts()}) {
    for (Dtype dtype : {Dtype::kF64, Dtype::kBf16}) {
      for (Change layout : layouts) {
        TinyRun kept;
        kept.model = model;
        kept.dtype = dtype;
        layout(kept.parallel);
        TinyRun again = kept;
        again.parallel.recompute_granularity = RecomputeGranularity::kSelective;
        again.parallel.recompute_modules = {"shared_experts", "mla_up_proj", "layernorm"};
        expect_same_bits(run_tiny(kept), run_tiny(again));
      }
    }
  }
}

const std::vector<Change> kLayouts = {
    [](ParallelConfig& p) { p.tensor_model_parallel_size = 2; },
    [](ParallelConfig& p) {
      p.tensor_model_parallel_size = 2;
      p.sequence_parallel = true;
      p.data_parallel_size = 2;
      p.data_parallel_sharding_strategy = ShardingStrategy::kOptimGradsParams;
    },
    [](ParallelConfig& p) {
      p.tensor_model_parallel_size = 2;
      p.sequence_parallel = true;
      p.context_parallel_size = 2;
      p.recompute_granularity = RecomputeGranularity::kFull;
    },
    [](ParallelConfig& p) {
      p.context_parallel_size = 2;
      p.pipeline_model_parallel_size = 2;
      p.pipeline_schedule = PipelineSchedule::kZeroBubbleH1;
      p.data_parallel_sharding_strategy = ShardingStrategy::kOptimGrads;
    },
    [](ParallelConfig& p) {
      p.data_parallel_size = 2;
      p.recompute_granularity = RecomputeGranularity::kSelective;
      p.recompute_modules = {"mlp", "layernorm"};
      p.data_parallel_sharding_strategy = ShardingStrategy::kOptim;
    },
};

const std::vector<Change> kExpertLayouts = {
    [](ParallelConfig& p) {
      p.data_parallel_size = 2;
      p.expert_model_parallel_size = 2;
    },
    [](ParallelConfig& p) {
      p.data_parallel_size = 4;
      p.expert_model_parallel_size = 2;
      p.data_parallel_sharding_strategy = ShardingStrategy::kOptimGradsParams;
      p.overlap_grad_reduce = p.overlap_param_gather = true;
    },
    [](ParallelConfig& p) {
      p.tensor_model_parallel_size = 2;
      p.sequence_parallel = true;
      p.context_parallel_size = 2;
      p.expert_model_parallel_size = 4;
      p.expert_tensor_parallel_size = 1;
      p.data_parallel_sharding_strategy = ShardingStrategy::kOptim;
    },
    [](ParallelConfig& p) {
      p.pipeline_model_parallel_size = 2;
      p.pipeline_schedule = PipelineSchedule::kZeroBubbleH1;
      p.data_parallel_size = 4;
      p.expert_model_parallel_size = 2;
      p.expert_tensor_parallel_size = 2;
      p.data_parallel_sharding_strategy = ShardingStrategy::kOptimGrads;
      p.recompute_granularity = RecomputeGranularity::kFull;
    },
    // tp ranks have the same tokens.
    [](ParallelConfig& p) {
      p.tensor_model_parallel_size = 2;
      p.data_parallel_size = 2;
      p.expert_model_parallel_size = 2;
      p.moe_shared_expert_overlap = true;
    },
    [](ParallelConfig& p) {
      p.tensor_model_parallel_size = 2;
      p.context_parallel_size = 2;
      p.expert_model_parallel_size = 4;
      p.expert_tensor_parallel_size = 1;
    },
};

TEST(Moe, SharingExpertsOutGivesOneRanksAnswer) {
  for (const ModelConfig& model :
       {mixtral_like(), deepseek_like(), gpt_oss_like(), many_experts()}) {
    for (TokenDispatcher dispatcher : {TokenDispatcher::kAllGather, TokenDispatcher::kAllToAll}) {
      TinyRun single;
      single.model = model;
      single.parallel.moe_token_dispatcher = dispatcher;
      expect_one_ranks_answer(single, kExpertLayouts);
    }
  }
}

// What the comparisons above include: every MoE layer reports statistics, MTP layers too, and
// different statistics count as a difference.
TEST(Moe, LayoutsAreComparedByWhatRoutersReport) {
  TinyRun run;
  run.model = gpt_oss_like();
  LayoutAnswer answer = run_tiny(run);
  EXPECT_EQ(answer.reports.at("mtp_1 loss").size(), 3u);
  for (std::int64_t layer = 0; layer < 5; ++layer) {
    EXPECT_GT(answer.reports.at(concat("load_balancing_loss of layer ", layer))[2], 0.9);
    EXPECT_GT(answer.reports.at(concat("tokens_max of layer ", layer))[0], 0);
  }
  LayoutAnswer other = answer;
  other.reports["z_loss of layer 4"][1] *= 1 + 1e-7;
  EXPECT_THAT(answer_difference(answer, other), testing::HasSubstr("z_loss of layer 4"));
}

// Multiples of the rate, which 16 bits would round; counts are not rounded on a bf16 wire.
TEST(Moe, ExpertBiasesAreF32InModelsOf16Bits) {
  const std::vector<Change> layouts = {
      [](ParallelConfig&) {},
      kExpertLayouts[1],
      kExpertLayouts[2],
      [](ParallelConfig& p) {
        p.data_parallel_size = 2;
        p.grad_reduce_in_bf16 = true;
      },
  };
  TinyRun single;
  single.model = deepseek_like();
  single.model.moe_training.bias_update_rate = 0.3;
  single.dtype = Dtype::kBf16;
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    TinyRun run = single;
    layouts[i](run.parallel);
    std::int64_t biases = 0, moved = 0;
    for (const auto& [name, values] : run_tiny(run).weights) {
      if (!name.ends_with(".router.expert_bias")) continue;
      for (double value : values) {
        double steps = value / 0.3;
        EXPECT_NEAR(steps, std::round(steps), 1e-6) << name << ", layout " << i;
        ++biases;
        if (std::abs(steps) > 0.5) ++moved;
      }
    }
    EXPECT_EQ(biases, 24);
    EXPECT_GT(moved, 4);
  }
}

// The capacity applies to the micro-batch, so the layout does not change what is dropped.
TEST(Moe, LayoutsDropTheSameChoices) {
  for (ModelConfig model : {mixtral_like(), deepseek_like(), gpt_oss_like()}) {
    for (DropPolicy policy : {DropPolicy::kProbs, DropPolicy::kPosition}) {
      model.moe_training.capacity_factor = 0.7;
      model.moe_training.drop_policy = policy;
      TinyRun single;
      single.model = model;
      single.micro_batch_size = 2;
      expect_one_ranks_answer(single, kLayouts);
      expect_one_ranks_answer(single, {kExpertLayouts[2], kExpertLayouts[4], kExpertLayouts[5]});
    }
  }
}

// The order of all sums is the same, so results are bitwise equal.
TEST(Moe, OverlapOfTheSharedExpertChangesNoBit) {
  for (const ModelConfig& model : {deepseek_like(), many_experts()}) {
    for (Change layout : {kExpertLayouts[0], kExpertLayouts[2], kExpertLayouts[3]}) {
      TinyRun run;
      run.model = model;
      run.dtype = Dtype::kF32;
      layout(run.parallel);
      LayoutAnswer plain = run_tiny(run);
      run.parallel.moe_shared_expert_overlap = true;
      expect_same_bits(plain, run_tiny(run));
    }
  }
}

TEST(Moe, RecomputedExpertsChangeNoBit) {
  for (const ModelConfig& model : {deepseek_like(), many_experts()}) {
    TinyRun run;
    run.model = model;
    run.dtype = Dtype::kF32;
    kExpertLayouts[0](run.parallel);
    LayoutAnswer plain = run_tiny(run);
    run.parallel.recompute_granularity = RecomputeGranularity::kSelective;
    for (const char* part : {"moe", "moe_act"}) {
      run.parallel.recompute_modules = {part};
      expect_same_bits(plain, run_tiny(run));
    }
  }
}

// Small blocks overflow in every step, others in some, large ones never.
TEST(Moe, ExchangesOfFixedSizeGiveTheBitsOfExactOnes) {
  ModelConfig dropping = balanced();
  dropping.moe_training.capacity_factor = 0.7;
  for (const ModelConfig& model : {mixtral_like(), dropping, gpt_oss_like()}) {
    for (TokenDispatcher dispatcher : {TokenDispatcher::kAllGather, TokenDispatcher::kAllToAll}) {
      for (std::size_t layout : {1, 2, 3, 4}) {
        if (dispatcher == TokenDispatcher::kAllGather && layout != 3) continue;
        TinyRun run;
        run.model = model;
        run.parallel.moe_token_dispatcher = dispatcher;
        kExpertLayouts[layout](run.parallel);
        LayoutAnswer exact = run_tiny(run);
        for (double factor : {0.2, 1.15, 9.0}) {
          SCOPED_TRACE(testing::Message() << "layout " << layout << ", factor " << factor);
          run.parallel.moe_expert_rank_capacity_factor = factor;
          expect_same_bits(exact, run_tiny(run));
        }
      }
    }
  }
}

// Sums are over backwards, whose order is unchanged. Only a tied embedding gets a part of its
// gradient in the forward, where the loss is computed.
TEST(Moe, InterleavedMicroBatchesChangeNoBit) {
  std::vector<Change> layouts = kExpertLayouts;
  layouts.push_back([](ParallelConfig& p) {
    p.pipeline_model_parallel_size = 2;
    p.num_virtual_stages_per_pipeline_rank = 2;
    p.data_parallel_size = 2;
    p.expert_model_parallel_size = 2;
    p.data_parallel_sharding_strategy = ShardingStrategy::kOptimGradsParams;
    p.recompute_granularity = RecomputeGranularity::kSelective;
    p.recompute_modules = {"mlp", "core_attn"};
    p.moe_expert_rank_capacity_factor = 1.15;
  });
  for (const ModelConfig& model : {balanced(), many_experts()}) {
    for (std::size_t layout = 0; layout < layouts.size(); ++layout) {
      TinyRun run;
      run.model = model;
      run.global_batch_size = 12;
      run.steps = 2;
      layouts[layout](run.parallel);
      run.parallel.pipeline_schedule = PipelineSchedule::k1F1B;
      LayoutAnswer plain = run_tiny(run);
      run.parallel.overlap_moe_expert_parallel_comm = true;
      for (bool delay : {false, true}) {
        SCOPED_TRACE(testing::Message() << "layout " << layout << ", delayed " << delay);
        run.parallel.delay_wgrad_compute = delay;
        LayoutAnswer paired = run_tiny(run);
        EXPECT_EQ(answer_difference(plain, paired), "");
        if (model.untie_embeddings_and_output_weights) expect_same_bits(plain, paired);
      }
    }
  }
}

TEST(Moe, EveryKindOfBalanceGivesOneRanksAnswer) {
  for (const ModelConfig& model : {balanced(), sinkhorn(), random_choices()}) {
    TinyRun single;
    single.model = model;
    single.global_batch_size = 6;
    expect_one_ranks_answer(single, kExpertLayouts);
    expect_one_ranks_answer(single, {kLayouts[0], kLayouts[2]});
  }
}

// Sequences of two tokens over four context-parallel ranks: two ranks have no tokens.
TEST(Moe, RanksWithoutTokensTakePart) {
  TinyRun single;
  single.model = mixtral_like();
  single.sequence_length = 2;
  for (TokenDispatcher dispatcher : {TokenDispatcher::kAllGather, TokenDispatcher::kAllToAll}) {
    single.parallel.moe_token_dispatcher = dispatcher;
    expect_one_ranks_answer(single, {[](ParallelConfig& p) {
                              p.context_parallel_size = 4;
                              p.expert_model_parallel_size = 4;
                            }});
  }
}

TEST(Moe, LayoutsGiveOneRanksAnswer) {
  for (const ModelConfig& model :
       {mixtral_like(), deepseek_like(), gpt_oss_like(), many_experts()}) {
    TinyRun single;
    single.model = model;
    single.micro_batch_size = 2;
    expect_one_ranks_answer(single, kLayouts);
  }
}

}  // namespace
}  // namespace bev::test
