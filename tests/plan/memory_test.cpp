#include "plan/memory.h"

#include <gtest/gtest.h>

#include <mutex>

#include "backend/cpu/cpu_kernels.h"
#include "base/text.h"
#include "comm/world.h"
#include "models/encoder_samples.h"
#include "models/families/family.h"
#include "parallel/engine.h"
#include "tests/support/hybrids.h"

namespace bev {
namespace {

using Strategy = ShardingStrategy;
using Recompute = RecomputeGranularity;

struct Case {
  std::string name;
  MemoryQuery query;
};

// Current and peak bytes of the arenas of a real step, by rank.
std::vector<RankMemory> measure(const MemoryQuery& query) {
  MeshShape mesh = mesh_shape(query.parallel);
  std::vector<RankMemory> measured(static_cast<std::size_t>(mesh.size()));
  run_thread_ranks(static_cast<int>(mesh.size()), {120.0}, [&](World& world) {
    EngineOptions options;
    options.model = query.model;
    options.parallel = query.parallel;
    options.optim = query.optim;
    options.dtype = query.dtype;
    options.fp8 = query.fp8;
    options.base = query.base;
    Engine engine(world, cpu_kernels(), options);
    RankMemory& memory = measured[static_cast<std::size_t>(world.rank())];
    std::int64_t step = 0;
    for (const auto& [tag, bytes] : engine.model().rank().arena().by_tag()) {
      if (tag == "weights") memory.weights = static_cast<std::int64_t>(bytes);
      if (tag == "weight gradients") memory.gradients = static_cast<std::int64_t>(bytes);
      if (tag == "optimizer") memory.optimizer = static_cast<std::int64_t>(bytes);
      if (tag == "step") step = static_cast<std::int64_t>(bytes);
    }
    memory.host_optimizer = static_cast<std::int64_t>(engine.model().rank().host_memory().in_use());
    // Without the buffers of a step.
    auto kept = static_cast<std::int64_t>(engine.model().rank().arena().in_use()) - step;
    EXPECT_EQ(kept, memory.total());
    for (const Param* param : engine.model().store().params())
      memory.parameters += param->local.numel();
    engine.model().rank().arena().reset_peak();
    std::int64_t samples = query.micro_batches * query.micro_batch_size * mesh.dp;
    StepSamples global = random_samples(query.model.vocab_size, samples, query.seq_length, 5);
    add_encoder_fields(query.model, global);
    std::vector<MicroBatch> batches = rank_micro_batches(
        engine.model().ctx(), global, query.micro_batch_size, mtp_spec(query.model));
    engine.prepare(batches);
    // Prefetch starts with the second step.
    for (int i = 0; i < (query.parallel.overlap_param_gather ? 2 : 1); ++i) {
      engine.train_step(batches, {i + 1, 1e-3, 0.1, 1.0, 1.0});
    }
    memory.activations = static_cast<std::int64_t>(engine.model().rank().arena().peak() +
                                                   engine.model().rank().inputs().peak()) -
                         kept;
    if (const Arena* host = engine.offloaded()) {
      memory.host_activations = static_cast<std::int64_t>(host->peak());
      EXPECT_GT(memory.host_activations, 0);
    }
  });
  return measured;
}

class MemoryPlanCase : public testing::TestWithParam<Case> {};

TEST_P(MemoryPlanCase, EqualsWhatTheArenasOfAStepHold) {
  const MemoryQuery& query = GetParam().query;
  MemoryPlan plan = plan_memory(query);
  std::vector<RankMemory> real = measure(query);
  ASSERT_EQ(plan.ranks.size(), real.size());
  for (std::size_t rank = 0; rank < real.size(); ++rank) {
    SCOPED_TRACE(concat("rank ", rank));
    EXPECT_EQ(plan.ranks[rank].parameters, real[rank].parameters);
    EXPECT_EQ(plan.ranks[rank].weights, real[rank].weights);
    EXPECT_EQ(plan.ranks[rank].gradients, real[rank].gradients);
    EXPECT_EQ(plan.ranks[rank].optimizer, real[rank].optimizer);
    EXPECT_EQ(plan.ranks[rank].host_optimizer, real[rank].host_optimizer);
    EXPECT_EQ(plan.ranks[rank].activations, real[rank].activations);
    EXPECT_EQ(plan.ranks[rank].host_activations, real[rank].host_activations);
    EXPECT_GT(real[rank].activations, 0);
  }
}

MemoryQuery tiny(ModelConfig model, Dtype dtype) {
  MemoryQuery query;
  query.model = std::move(model);
  query.dtype = dtype;
  query.device = &cpu_kernels();
  query.seq_length = 12;
  query.micro_batch_size = 2;
  query.micro_batches = 5;
  query.parallel.data_parallel_size = 1;
  return query;
}

// Wide and long enough that activations dominate.
MemoryQuery middle(ModelConfig model, Dtype dtype) {
  model.num_layers = 3;
  model.hidden_size = 128;
  model.ffn_hidden_size = 256;
  model.num_attention_heads = 4;
  if (model.num_query_groups > 0) model.num_query_groups = 2;
  model.kv_channels = 0;
  model.vocab_size = 1009;
  model.max_position_embeddings = 256;
  MemoryQuery query = tiny(std::move(model), dtype);
  query.seq_length = 256;
  query.micro_batches = 2;
  return query;
}

MemoryQuery with_layout(MemoryQuery query, std::int64_t tp, std::int64_t pp, std::int64_t dp,
                        Strategy strategy = Strategy::kNoShard) {
  query.parallel.tensor_model_parallel_size = tp;
  query.parallel.pipeline_model_parallel_size = pp;
  query.parallel.data_parallel_size = dp;
  query.parallel.data_parallel_sharding_strategy = strategy;
  query.parallel.sequence_parallel = tp > 1;
  return query;
}

MemoryQuery with_recompute(MemoryQuery query, Recompute granularity,
                           std::vector<std::string> parts = {}) {
  query.parallel.recompute_granularity = granularity;
  query.parallel.recompute_num_layers = 2;
  query.parallel.recompute_modules = std::move(parts);
  return query;
}

MemoryQuery with_pipeline(MemoryQuery query, std::int64_t pp, std::int64_t chunks,
                          PipelineSchedule schedule, std::string text = "") {
  query.parallel.pipeline_model_parallel_size = pp;
  query.parallel.num_virtual_stages_per_pipeline_rank = chunks;
  query.parallel.pipeline_schedule = schedule;
  query.parallel.pipeline_model_parallel_layout = std::move(text);
  return query;
}

MemoryQuery with_fp8(MemoryQuery query, Fp8Scaling recipe) {
  query.fp8.fp8_format = Fp8FormatChoice::kHybrid;
  query.fp8.fp8_recipe = recipe;
  query.fp8.fp8_amax_history_len = 100;
  return query;
}

MemoryQuery with_micro_batches(MemoryQuery query, std::int64_t count) {
  query.micro_batches = count;
  return query;
}

MemoryQuery with_overlap(MemoryQuery query, std::int64_t instances = 1, bool bf16_wire = false,
                         std::int64_t bucket_size = 0) {
  query.parallel.overlap_grad_reduce = query.parallel.overlap_param_gather = true;
  query.parallel.num_distributed_optimizer_instances = instances;
  query.parallel.grad_reduce_in_bf16 = bf16_wire;
  query.parallel.ddp_bucket_size = bucket_size;
  return query;
}

ModelConfig every_choice() {
  ModelConfig model = test::tiny_llama();
  model.norm_placement = NormPlacement::kPreAndPost;
  model.qk_layernorm = model.add_qkv_bias = true;
  model.hidden_dropout = model.attention_dropout = 0.1;
  model.window_size = 5;
  model.window_layers = {2};
  model.rotary_base_local = 1000;
  return model;
}

ModelConfig parallel_residual() {
  ModelConfig model = test::tiny_gpt();
  model.parallel_residual = true;
  model.hidden_dropout = 0.1;
  return model;
}

// Latents much smaller than the heads, and a large shared expert.
MemoryQuery deepseek() {
  MemoryQuery query = middle(test::tiny_deepseek(), Dtype::kBf16);
  query.model.moe.num_experts = 4;
  query.model.moe.ffn_hidden_size = 16;
  query.model.moe.shared_expert_size = 512;
  query.model.num_query_groups = 0;
  query.model.v_head_dim = query.model.qk_head_dim = 64;
  return query;
}

std::int64_t recomputing(const MemoryQuery& query, std::vector<std::string> parts) {
  MemoryQuery again = with_recompute(query, Recompute::kSelective, std::move(parts));
  return plan_memory(again).ranks.front().activations;
}

TEST(MemoryPlan, PartsThatAreMadeAgainAreNotKept) {
  std::int64_t all = plan_memory(deepseek()).ranks.front().activations;
  std::int64_t shared = recomputing(deepseek(), {"shared_experts"});
  std::int64_t heads = recomputing(deepseek(), {"mla_up_proj"});
  EXPECT_LT(shared, all * 0.9);
  EXPECT_LT(heads, all * 0.9);
  EXPECT_LT(recomputing(deepseek(), {"shared_experts", "mla_up_proj"}), std::min(shared, heads));
  MemoryQuery heads_exchanged = deepseek();
  heads_exchanged.parallel.context_parallel_size = 2;
  heads_exchanged.parallel.cp_comm_type = {"a2a"};
  EXPECT_LT(recomputing(heads_exchanged, {"mla_up_proj"}),
            plan_memory(heads_exchanged).ranks.front().activations * 0.95);
}

// BERT with the head of pairs.
ModelConfig pair_encoder() {
  ModelConfig model = family_defaults("bert");
  model.num_layers = 2;
  model.hidden_size = 36;
  model.ffn_hidden_size = 44;
  model.num_attention_heads = 4;
  model.num_query_groups = model.kv_channels = 0;
  model.vocab_size = 61;
  model.max_position_embeddings = 32;
  model.encoder.pooler = model.encoder.next_sentence = true;
  return model;
}

// The same with a head for labels of sequences; one label is a number.
ModelConfig label_encoder(std::int64_t labels) {
  ModelConfig model = pair_encoder();
  model.encoder.next_sentence = model.encoder.language_head = model.add_head_bias = false;
  model.encoder.transform = false;
  model.encoder.labels = LabelKind::kSequence;
  model.num_labels = labels;
  return model;
}

std::vector<Case> cases() {
  Dtype f32 = Dtype::kF32, bf16 = Dtype::kBf16;
  ModelConfig gpt = test::tiny_gpt(), llama = test::tiny_llama();
  std::vector<Case> list = {
      {"gpt", tiny(gpt, f32)},
      {"llama_bf16", tiny(llama, bf16)},
      {"llama_f64", tiny(llama, Dtype::kF64)},
      {"every_choice", tiny(every_choice(), bf16)},
      {"parallel_residual", tiny(parallel_residual(), f32)},
      {"gpt_middle", middle(gpt, f32)},
      {"llama_middle_bf16", middle(llama, bf16)},
      {"core_attn_middle",
       with_recompute(middle(llama, bf16), Recompute::kSelective, {"core_attn"})},
      {"layernorm_middle", with_recompute(middle(gpt, f32), Recompute::kSelective, {"layernorm"})},
      {"mlp_middle",
       with_recompute(middle(llama, f32), Recompute::kSelective, {"mlp", "core_attn"})},
      {"full_middle", with_recompute(middle(llama, bf16), Recompute::kFull)},
      {"gpt_tp2", with_layout(tiny(gpt, f32), 2, 1, 1)},
      {"llama_tp2_middle", with_layout(middle(llama, bf16), 2, 1, 1)},
      {"gpt_pp2", with_layout(tiny(gpt, bf16), 1, 2, 1)},
      {"llama_pp4", with_layout(tiny(llama, f32), 1, 4, 1)},
      {"gpt_pp2_middle", with_layout(middle(gpt, f32), 1, 2, 1)},
      {"gpt_zero1", with_layout(tiny(gpt, bf16), 1, 1, 3, Strategy::kOptim)},
      {"llama_zero2", with_layout(tiny(llama, f32), 1, 1, 2, Strategy::kOptimGrads)},
      {"llama_zero3_middle",
       with_layout(middle(llama, bf16), 1, 1, 2, Strategy::kOptimGradsParams)},
      {"fp8_tensorwise_tp2",
       with_fp8(with_layout(middle(llama, bf16), 2, 1, 1), Fp8Scaling::kTensorwise)},
      {"fp8_tensorwise_recompute",
       with_fp8(with_recompute(middle(llama, bf16), Recompute::kSelective, {"layernorm", "mlp"}),
                Fp8Scaling::kTensorwise)},
      {"fp8_delayed_zero1",
       with_fp8(with_layout(middle(gpt, bf16), 1, 1, 2, Strategy::kOptim), Fp8Scaling::kDelayed)},
      {"fp8_blockwise_zero3",
       with_fp8(with_layout(middle(llama, bf16), 1, 1, 2, Strategy::kOptimGradsParams),
                Fp8Scaling::kBlockwise)},
      {"encoder_pairs", tiny(pair_encoder(), f32)},
      {"encoder_pairs_tp2_pp2", with_layout(tiny(pair_encoder(), bf16), 2, 2, 1)},
      {"encoder_labels_zero3",
       with_layout(tiny(label_encoder(3), f32), 1, 1, 2, Strategy::kOptimGradsParams)},
      {"encoder_number", tiny(label_encoder(1), f32)},
      {"encoder_number_bf16", tiny(label_encoder(1), bf16)},
      {"all_axes",
       with_recompute(with_layout(tiny(gpt, bf16), 2, 2, 2, Strategy::kOptimGradsParams),
                      Recompute::kFull)},
  };
  for (Strategy strategy :
       {Strategy::kNoShard, Strategy::kOptim, Strategy::kOptimGrads, Strategy::kOptimGradsParams}) {
    std::string zero = concat("zero", static_cast<int>(strategy));
    list.push_back({zero + "_overlap_middle",
                    with_overlap(with_layout(middle(llama, bf16), 1, 1, 2, strategy))});
    list.push_back({zero + "_overlap_buckets",
                    with_overlap(with_layout(tiny(gpt, f32), 1, 1, 3, strategy), 1, false, 100)});
    list.push_back({zero + "_instances_bf16_wire",
                    with_overlap(with_layout(tiny(llama, f32), 1, 1, 4, strategy), 2, true, 100)});
    list.push_back({zero + "_bf16_wire_of_three",
                    with_overlap(with_layout(middle(gpt, f32), 1, 1, 3, strategy), 1, true)});
    list.push_back({zero + "_overlap_all_axes",
                    with_overlap(with_layout(tiny(gpt, bf16), 2, 2, 2, strategy), 1, true, 100)});
    list.push_back({zero + "_overlap_recompute",
                    with_recompute(with_overlap(with_layout(middle(llama, f32), 1, 1, 2, strategy)),
                                   Recompute::kFull)});
  }
  for (std::string part : {"shared_experts", "mla_up_proj"}) {
    list.push_back({part, with_recompute(deepseek(), Recompute::kSelective, {part})});
    list.push_back({part + "_tp2", with_recompute(with_layout(deepseek(), 2, 1, 2),
                                                  Recompute::kSelective, {part})});
  }
  auto wide_stream = [](MemoryQuery query) {
    query.model.fp32_residual_connection = true;
    return query;
  };
  ModelConfig post = llama;
  post.norm_placement = NormPlacement::kPost;
  list.push_back({"fp32_residual", wide_stream(tiny(gpt, bf16))});
  list.push_back({"fp32_residual_middle", wide_stream(middle(llama, bf16))});
  list.push_back({"fp32_residual_post_norms", wide_stream(middle(post, bf16))});
  list.push_back({"fp32_residual_all_axes",
                  wide_stream(with_layout(tiny(llama, bf16), 2, 2, 2, Strategy::kOptimGrads))});
  list.push_back({"fp32_residual_recompute",
                  wide_stream(with_recompute(middle(llama, bf16), Recompute::kSelective,
                                             {"layernorm", "mlp"}))});
  list.push_back(
      {"fp32_residual_fp8",
       wide_stream(with_fp8(with_layout(middle(llama, bf16), 2, 1, 1), Fp8Scaling::kBlockwise))});
  auto clipped = [](MemoryQuery query) {
    query.optim.qk.qk_clip = true;
    return query;
  };
  list.push_back(
      {"qk_clip_zero2", clipped(with_layout(tiny(llama, bf16), 2, 1, 3, Strategy::kOptimGrads))});
  list.push_back({"qk_clip_latent_pp2", clipped(with_layout(deepseek(), 1, 2, 1))});
  MemoryQuery sgd = tiny(gpt, bf16);
  sgd.optim.optimizer = OptimizerKind::kSgd;
  list.push_back({"sgd", sgd});
  const auto optimizer = [](MemoryQuery query, OptimizerKind kind) {
    query.optim.optimizer = kind;
    return query;
  };
  // Short sequences: the matrices are the peak.
  MemoryQuery brief = tiny(llama, bf16);
  brief.seq_length = 4;
  brief.model.hidden_size = 96;
  brief.micro_batch_size = brief.micro_batches = 1;
  for (auto [name, kind] : {std::pair{"muon", OptimizerKind::kMuon},
                            {"adafactor", OptimizerKind::kAdafactor},
                            {"soap", OptimizerKind::kSoap},
                            {"lion", OptimizerKind::kLion}}) {
    list.push_back({name, optimizer(brief, kind)});
    list.push_back(
        {concat(name, "_zero1"), optimizer(with_layout(brief, 1, 1, 3, Strategy::kOptim), kind)});
    list.push_back({concat(name, "_all_axes"),
                    optimizer(with_layout(brief, 2, 2, 2, Strategy::kOptimGradsParams), kind)});
  }
  list.push_back({"muon_of_experts_zero2", optimizer(with_layout(tiny(test::mixtral_like(), f32), 1,
                                                                 1, 2, Strategy::kOptimGrads),
                                                     OptimizerKind::kMuon)});
  MemoryQuery distributed =
      optimizer(with_layout(brief, 2, 1, 2, Strategy::kOptim), OptimizerKind::kMuon);
  distributed.optim.muon.tp_mode = MuonTpMode::kDistributed;
  list.push_back({"muon_distributed", distributed});
  MemoryQuery narrow = with_layout(tiny(gpt, bf16), 1, 1, 3, Strategy::kOptimGrads);
  narrow.optim.dtypes = {bf16, bf16, bf16, bf16};
  list.push_back({"everything_in_bf16", narrow});
  MemoryQuery moments = with_overlap(with_layout(middle(llama, bf16), 1, 1, 2, Strategy::kOptim));
  moments.optim.dtypes = {f32, bf16, bf16, f32};
  list.push_back({"gradients_and_first_moment_in_bf16", moments});
  MemoryQuery second = tiny(llama, f32);
  second.optim.dtypes.exp_avg_sq = bf16;
  list.push_back({"second_moment_in_bf16", second});
  auto offloaded = [](MemoryQuery query, double fraction, Dtype kept) {
    query.optim.optimizer_cpu_offload = true;
    query.optim.optimizer_offload_fraction = fraction;
    query.optim.dtypes.exp_avg = query.optim.dtypes.exp_avg_sq = kept;
    return query;
  };
  Dtype fp8 = Dtype::kU8;
  list.push_back({"offload", offloaded(tiny(llama, bf16), 1, f32)});
  list.push_back(
      {"offload_half_zero1",
       offloaded(with_layout(middle(llama, bf16), 1, 1, 3, Strategy::kOptim), 0.5, f32)});
  list.push_back(
      {"offload_fp8_zero3",
       offloaded(with_layout(tiny(gpt, bf16), 1, 1, 2, Strategy::kOptimGradsParams), 1, fp8)});
  list.push_back(
      {"offload_fp8_all_axes",
       offloaded(with_layout(tiny(gpt, bf16), 2, 2, 2, Strategy::kOptimGrads), 0.3, fp8)});
  MemoryQuery moments8 = offloaded(tiny(gpt, f32), 0, f32);
  moments8.optim.dtypes.exp_avg_sq = fp8;
  list.push_back({"second_moment_in_fp8", moments8});
  MemoryQuery block = with_recompute(tiny(llama, f32), Recompute::kFull);
  block.parallel.recompute_method = RecomputeMethod::kBlock;
  list.push_back({"full_block", block});
  MemoryQuery whole = with_layout(tiny(llama, f32), 2, 1, 1);
  whole.parallel.sequence_parallel = false;
  list.push_back({"tp2_without_sequence_parallel", whole});
  MemoryQuery adapters = with_layout(tiny(llama, bf16), 2, 2, 2, Strategy::kOptimGradsParams);
  adapters.model.lora.rank = 4;
  adapters.model.lora.target_modules = {"all-linear"};
  list.push_back({"adapters_zero3", adapters});
  adapters.parallel.data_parallel_sharding_strategy = Strategy::kOptim;
  list.push_back({"adapters_zero1", adapters});
  adapters.base = {.quantize_base = BaseFormat::kNf4, .double_quant = true};
  list.push_back({"adapters_nf4_zero1", adapters});
  adapters.parallel.data_parallel_sharding_strategy = Strategy::kOptimGradsParams;
  adapters.base.double_quant = false;
  list.push_back({"adapters_nf4_zero3", adapters});
  MemoryQuery one_rank = with_recompute(middle(llama, bf16), Recompute::kFull);
  one_rank.model.lora.rank = 4;
  one_rank.model.lora.target_modules = {"all-linear"};
  one_rank.base = {.quantize_base = BaseFormat::kNf4, .quantize_block_size = 32};
  list.push_back({"adapters_nf4", one_rank});
  return list;
}

INSTANTIATE_TEST_SUITE_P(, MemoryPlanCase, testing::ValuesIn(cases()),
                         [](const auto& row) { return row.param.name; });

// More micro-batches than the plan plays.
std::vector<Case> pipeline_cases() {
  Dtype f32 = Dtype::kF32, bf16 = Dtype::kBf16;
  PipelineSchedule plain = PipelineSchedule::k1F1B, h1 = PipelineSchedule::kZeroBubbleH1,
                   v = PipelineSchedule::kZeroBubbleV;
  ModelConfig gpt = test::tiny_gpt(), llama = test::tiny_llama();
  ModelConfig deep = gpt;
  deep.num_layers = 9;
  MemoryQuery in_turn = with_pipeline(tiny(gpt, f32), 2, 2, plain);
  in_turn.parallel.overlap_p2p_communication = false;
  ModelConfig ahead = llama, tied = gpt;
  ahead.mtp_num_layers = tied.mtp_num_layers = 2;
  MemoryQuery grouped = with_micro_batches(with_pipeline(tiny(gpt, f32), 2, 2, plain), 23);
  grouped.parallel.microbatch_group_size = 3;
  return {
      {"pp2vpp2", with_pipeline(tiny(gpt, bf16), 2, 2, plain)},
      {"pp2vpp2_without_overlap", in_turn},
      {"pp2vpp2_groups", grouped},
      {"pp4vpp1_many", with_micro_batches(with_pipeline(tiny(gpt, f32), 4, 1, plain), 30)},
      {"pp2vpp2_many", with_micro_batches(with_pipeline(tiny(llama, f32), 2, 2, plain), 24)},
      {"pp2zbh1", with_pipeline(tiny(llama, bf16), 2, 0, h1)},
      {"pp4zbh1_many", with_micro_batches(with_pipeline(tiny(gpt, f32), 4, 0, h1), 37)},
      {"pp2zbh1_many", with_micro_batches(with_pipeline(tiny(llama, f32), 2, 0, h1), 36)},
      {"pp3vpp3_many", with_micro_batches(with_pipeline(tiny(deep, f32), 3, 3, plain), 47)},
      {"pp2zbh1_middle", with_pipeline(middle(gpt, f32), 2, 0, h1)},
      {"pp2zbv", with_pipeline(tiny(gpt, f32), 2, 0, v)},
      {"pp2zbv_many", with_micro_batches(with_pipeline(tiny(llama, f32), 2, 0, v), 25)},
      {"pp3zbv_many", with_micro_batches(with_pipeline(tiny(deep, f32), 3, 0, v), 50)},
      {"pp4zbv_many", with_micro_batches(with_pipeline(tiny(deep, f32), 4, 0, v), 61)},
      {"pp2zbv_middle", with_pipeline(middle(gpt, f32), 2, 2, v, "Et|t||tL")},
      {"pp2zbv_selective", with_recompute(with_pipeline(tiny(llama, bf16), 2, 0, v),
                                          Recompute::kSelective, {"core_attn", "mlp"})},
      {"ends_alone", with_pipeline(tiny(gpt, f32), 4, 0, plain, "E|tt|tt|L")},
      {"depths", with_pipeline(tiny(ahead, bf16), 3, 0, plain, "Ett|tt|mmL")},
      {"depths_alone", with_pipeline(tiny(ahead, bf16), 4, 0, plain, "Ett|tt|mm|L")},
      {"depths_apart", with_pipeline(tiny(tied, f32), 2, 0, plain, "Ett|tt|m|mL")},
      {"depths_zbv", with_pipeline(tiny(tied, f32), 2, 0, v, "Ett|tt|mm|L")},
      {"empty_stage", with_pipeline(tiny(llama, bf16), 2, 0, plain, "Ett||t|tL")},
      {"zbv_zero3",
       with_pipeline(with_layout(tiny(gpt, bf16), 2, 2, 2, Strategy::kOptimGradsParams), 2, 0, v)},
  };
}

// Sequences split over ranks, evenly and not; tensor-parallel ranks that share heads or overlap.
std::vector<Case> context_cases() {
  auto cut = [](MemoryQuery query, std::int64_t cp, std::vector<std::string> types,
                std::vector<std::int64_t> sizes = {}) {
    query.parallel.context_parallel_size = cp;
    query.parallel.cp_comm_type = std::move(types);
    query.parallel.hierarchical_context_parallel_sizes = std::move(sizes);
    return query;
  };
  auto of_length = [](MemoryQuery query, std::int64_t length) {
    query.seq_length = length;
    return query;
  };
  Dtype f32 = Dtype::kF32, bf16 = Dtype::kBf16;
  ModelConfig gpt = test::tiny_gpt(), llama = test::tiny_llama();
  llama.kv_channels = 8;
  llama.num_attention_heads = 4;
  MemoryQuery overlap = with_layout(middle(llama, bf16), 2, 1, 1);
  overlap.parallel.tp_comm_overlap = true;
  MemoryQuery uneven = with_layout(of_length(tiny(gpt, f32), 7), 4, 1, 1);
  uneven.parallel.tp_comm_overlap = true;
  return {
      {"cp2_ring", cut(middle(llama, bf16), 2, {"p2p"})},
      {"cp2_heads", cut(middle(llama, f32), 2, {"a2a"})},
      {"cp2_gather", cut(middle(gpt, bf16), 2, {"allgather"})},
      {"cp4_both", cut(tiny(gpt, f32), 4, {"a2a+p2p"}, {2, 2})},
      {"cp3_ring_uneven", cut(of_length(tiny(gpt, f32), 13), 3, {"p2p"})},
      {"cp3_gather_uneven", cut(of_length(tiny(llama, f32), 5), 3, {"allgather"})},
      {"cp2_heads_uneven", cut(of_length(tiny(gpt, bf16), 7), 2, {"a2a"})},
      {"cp2_tp2_zero3_recompute",
       with_recompute(
           cut(with_layout(tiny(gpt, bf16), 2, 1, 1, Strategy::kOptimGradsParams), 2, {"p2p"}),
           Recompute::kSelective, {"core_attn"})},
      {"tp4_shared_heads", with_layout(tiny(llama, f32), 4, 1, 1)},
      {"tp2_overlap", overlap},
      {"tp4_overlap_uneven", uneven},
  };
}

// Offloaded activations of whole layers and of modules.
std::vector<Case> offload_cases() {
  auto layers = [](MemoryQuery query, std::int64_t count) {
    query.parallel.offload.cpu_offloading_num_layers = count;
    query.parallel.offload.min_offloaded_tensor_size = 100;
    return query;
  };
  auto parts = [](MemoryQuery query, std::vector<std::string> names) {
    query.parallel.offload.fine_grained_activation_offloading = true;
    query.parallel.offload.offload_modules = std::move(names);
    query.parallel.offload.min_offloaded_tensor_size = 1;
    return query;
  };
  Dtype f32 = Dtype::kF32, bf16 = Dtype::kBf16;
  ModelConfig gpt = test::tiny_gpt(), llama = test::tiny_llama(), experts = llama;
  experts.moe.num_experts = 4;
  experts.moe.topk = 2;
  ModelConfig biased = experts;
  biased.moe.score_function = RouterScore::kSigmoid;
  biased.moe.expert_bias = true;
  biased.moe_training.bias_update_rate = 0.01;
  biased.moe_training.load_balancing = {"global_aux_loss"};
  biased.moe_training.aux_loss_coeff = {0.1};
  MemoryQuery wired =
      with_overlap(with_layout(tiny(biased, bf16), 1, 1, 3, Strategy::kOptim), 1, true);
  wired.optim.optimizer_cpu_offload = true;
  wired.optim.optimizer_offload_fraction = 0.5;
  wired.optim.dtypes = {bf16, bf16, Dtype::kU8, Dtype::kU8};
  std::vector<std::string> all = offload_part_names();
  return {
      {"layers_middle", layers(middle(llama, bf16), 3)},
      {"one_layer_middle", layers(middle(gpt, f32), 1)},
      {"layers_full_middle", layers(with_recompute(middle(llama, bf16), Recompute::kFull), 3)},
      {"layers_tp2", layers(with_layout(middle(llama, bf16), 2, 1, 1), 3)},
      {"layers_pp2_many",
       layers(with_micro_batches(with_pipeline(tiny(gpt, f32), 2, 1, PipelineSchedule::k1F1B), 30),
              2)},
      {"layers_pp2zbv",
       layers(with_pipeline(tiny(gpt, f32), 2, 0, PipelineSchedule::kZeroBubbleV), 1)},
      {"layers_zero3",
       layers(with_overlap(with_layout(middle(llama, bf16), 1, 1, 2, Strategy::kOptimGradsParams)),
              3)},
      {"layers_fp8", layers(with_fp8(middle(llama, bf16), Fp8Scaling::kTensorwise), 3)},
      {"parts_middle", parts(middle(llama, bf16), all)},
      {"some_parts", parts(middle(gpt, f32), {"core_attn", "mlp_act"})},
      {"parts_of_experts", parts(tiny(experts, f32), all)},
      {"experts", tiny(experts, f32)},
      {"expert_biases", tiny(biased, bf16)},
      {"expert_biases_zero3",
       with_layout(tiny(biased, bf16), 1, 1, 3, Strategy::kOptimGradsParams)},
      {"expert_biases_offload", wired},
  };
}

// MoE exchanges of fixed size, alone and with paired micro-batches.
std::vector<Case> expert_cases() {
  ModelConfig experts = test::tiny_llama();
  experts.moe.num_experts = 4;
  experts.moe.topk = 2;
  auto fixed = [&](std::int64_t tp, std::int64_t pp, std::int64_t dp, bool paired) {
    MemoryQuery query = with_layout(tiny(experts, Dtype::kF32), tp, pp, dp);
    query.parallel.expert_model_parallel_size = 2;
    query.parallel.moe_expert_rank_capacity_factor = 3;
    query.parallel.overlap_moe_expert_parallel_comm = query.parallel.delay_wgrad_compute = paired;
    return query;
  };
  auto rounded = [&](std::int64_t dp, std::int64_t ep, Strategy strategy) {
    MemoryQuery query = with_fp8(with_layout(middle(experts, Dtype::kBf16), 1, 1, dp, strategy),
                                 Fp8Scaling::kBlockwise);
    query.parallel.expert_model_parallel_size = ep;
    query.parallel.moe_expert_rank_capacity_factor = ep > 1 ? 3 : 0;
    return query;
  };
  return {{"fixed", fixed(1, 1, 2, false)},
          {"fixed_tp2", fixed(2, 1, 2, false)},
          {"paired", fixed(1, 1, 2, true)},
          {"paired_pp2", fixed(1, 2, 2, true)},
          {"fp8_experts", rounded(1, 1, Strategy::kNoShard)},
          {"fp8_experts_zero3", rounded(2, 1, Strategy::kOptimGradsParams)},
          {"fp8_experts_fixed", rounded(2, 2, Strategy::kOptim)}};
}

// Layers of the gated delta rule between attention with a gate.
std::vector<Case> delta_cases() {
  ModelConfig model = test::tiny_llama();
  model.num_layers = 4;
  model.hybrid_layer_pattern = "ggaG";
  model.num_attention_heads = 4;
  model.num_query_groups = 2;
  model.attention_output_gate = model.qk_layernorm = true;
  model.delta = {.conv_kernel = 4,
                 .key_head_dim = 24,
                 .value_head_dim = 20,
                 .num_key_heads = 2,
                 .num_value_heads = 4};
  auto cut = [](MemoryQuery query, std::int64_t cp) {
    query.parallel.context_parallel_size = cp;
    query.seq_length = 130;
    return query;
  };
  Dtype f32 = Dtype::kF32, bf16 = Dtype::kBf16;
  return {
      {"f32", tiny(model, f32)},
      {"bf16_tp2", with_layout(tiny(model, bf16), 2, 1, 1)},
      {"pp2", with_layout(tiny(model, bf16), 1, 2, 1)},
      {"dp2_zero3", with_layout(tiny(model, bf16), 1, 1, 2, Strategy::kOptimGradsParams)},
      {"cp2", cut(tiny(model, f32), 2)},
      {"cp3_recompute", with_recompute(cut(tiny(model, bf16), 3), Recompute::kFull)},
  };
}

INSTANTIATE_TEST_SUITE_P(GatedDelta, MemoryPlanCase, testing::ValuesIn(delta_cases()),
                         [](const auto& row) { return row.param.name; });

// Layers with states, whose exchanges between ranks need memory too.
std::vector<Case> recurrent_cases() {
  auto cut = [](MemoryQuery query, std::int64_t cp) {
    query.parallel.context_parallel_size = cp;
    return query;
  };
  Dtype f32 = Dtype::kF32, bf16 = Dtype::kBf16;
  const ModelConfig mamba = test::tiny_mamba(), hybrid = test::tiny_nemotron_h();
  const ModelConfig parallel = test::tiny_falcon_h1();
  return {
      {"mamba", tiny(mamba, f32)},
      {"mamba_bf16_tp4", with_layout(tiny(mamba, bf16), 4, 1, 1)},
      {"mamba_pp2zbh1", with_pipeline(tiny(mamba, bf16), 2, 0, PipelineSchedule::kZeroBubbleH1)},
      {"mamba_full", with_recompute(tiny(mamba, f32), Recompute::kFull)},
      {"mamba_cp2", cut(tiny(mamba, f32), 2)},
      {"mamba_cp3_tp2", cut(with_layout(tiny(mamba, bf16), 2, 1, 1), 3)},
      {"one_part", tiny(hybrid, bf16)},
      {"one_part_zero3", with_layout(tiny(hybrid, f32), 2, 1, 2, Strategy::kOptimGradsParams)},
      {"parallel_tp2_pp2", with_layout(tiny(parallel, bf16), 2, 2, 1)},
      {"parallel_cp2", cut(tiny(parallel, f32), 2)},
      {"granite_zero1", with_layout(tiny(test::tiny_granite_h(), f32), 1, 1, 2, Strategy::kOptim)},
  };
}

INSTANTIATE_TEST_SUITE_P(Recurrent, MemoryPlanCase, testing::ValuesIn(recurrent_cases()),
                         [](const auto& row) { return row.param.name; });

INSTANTIATE_TEST_SUITE_P(Experts, MemoryPlanCase, testing::ValuesIn(expert_cases()),
                         [](const auto& row) { return row.param.name; });

INSTANTIATE_TEST_SUITE_P(Offload, MemoryPlanCase, testing::ValuesIn(offload_cases()),
                         [](const auto& row) { return row.param.name; });

INSTANTIATE_TEST_SUITE_P(Context, MemoryPlanCase, testing::ValuesIn(context_cases()),
                         [](const auto& row) { return row.param.name; });

INSTANTIATE_TEST_SUITE_P(Pipeline, MemoryPlanCase, testing::ValuesIn(pipeline_cases()),
                         [](const auto& row) { return row.param.name; });

// GPT-2 124M: 12 layers of 768 with tied word embeddings of 50257 rows and 1024 positions.
MemoryQuery gpt2() {
  MemoryQuery query;
  query.model.num_layers = 12;
  query.model.hidden_size = 768;
  query.model.num_attention_heads = 12;
  query.model.vocab_size = 50257;
  query.model.max_position_embeddings = query.seq_length = 1024;
  query.parallel.data_parallel_size = 1;
  return query;
}

// Under ZeRO-3 a phase of rollouts gathers every weight once, and holds it until it is released.
TEST(MemoryPlan, CountsWeightsThatRolloutsGather) {
  for (Strategy strategy : {Strategy::kOptimGrads, Strategy::kOptimGradsParams}) {
    MemoryQuery query = with_layout(tiny(test::tiny_llama(), Dtype::kBf16), 2, 1, 2, strategy);
    query.parallel.sequence_parallel = false;
    query.rollouts = true;
    MemoryPlan plan = plan_memory(query);
    run_thread_ranks(4, {60.0}, [&](World& world) {
      EngineOptions options;
      options.model = query.model;
      options.parallel = query.parallel;
      options.dtype = query.dtype;
      Engine engine(world, cpu_kernels(), options);
      ParamStore& store = engine.model().store();
      auto gathered = [&] {
        std::int64_t sum = 0;
        for (const auto& [tag, bytes] : engine.model().rank().arena().by_tag()) {
          if (tag == "gathered weights") sum += static_cast<std::int64_t>(bytes);
        }
        return sum;
      };
      store.hold_gathered();
      std::vector<const void*> places;
      for (int pass = 0; pass < 2; ++pass) {
        std::size_t i = 0;
        for (const Param* param : store.params()) {
          WeightLease lease = store.use(*param);
          if (pass == 0) places.push_back(lease.view.data);
          EXPECT_EQ(lease.view.data, places[i++]) << param->name;
        }
      }
      EXPECT_EQ(gathered(), plan.ranks[static_cast<std::size_t>(world.rank())].gathered);
      EXPECT_EQ(gathered() > 0, strategy == Strategy::kOptimGradsParams);
      store.release_gathered();
      EXPECT_EQ(gathered(), 0);
    });
  }
}

TEST(MemoryPlan, CountsTheParametersOfGpt2) {
  MemoryPlan plan = plan_memory(gpt2());
  EXPECT_EQ(plan.parameters, 124439808);
  EXPECT_EQ(plan.embedding_parameters, (50257 + 1024) * 768);
  EXPECT_EQ(plan.ranks[0].parameters, plan.parameters);
}

// Megatron's bytes per parameter: 18 with bf16, 6 + 12 / dp with a sharded optimizer.
TEST(MemoryPlan, HasMegatronsBytesPerParameter) {
  MemoryQuery query = gpt2();
  query.dtype = Dtype::kBf16;
  auto bytes_per_parameter = [&] {
    MemoryPlan plan = plan_memory(query);
    const RankMemory& rank = plan.ranks[0];
    return static_cast<double>(rank.weights + rank.gradients + rank.optimizer) /
           static_cast<double>(plan.parameters);
  };
  EXPECT_NEAR(bytes_per_parameter(), 18, 0.01);
  query.parallel.data_parallel_size = 16;
  query.parallel.data_parallel_sharding_strategy = Strategy::kOptim;
  EXPECT_NEAR(bytes_per_parameter(), 6 + 12.0 / 16, 0.01);
}

// QLoRA on a small card: rank 16 on all linear layers of Llama 3.1 8B, 2,048 tokens, full
// recompute.
TEST(MemoryPlan, QloraOfEightBillionFitsInAnEightGigabyteCard) {
  MemoryQuery query;
  query.model = preset("llama3.1-8b");
  query.model.lora.rank = 16;
  query.model.lora.alpha = 32;
  query.model.lora.target_modules = {"all-linear"};
  query.dtype = Dtype::kBf16;
  query.base = {.quantize_base = BaseFormat::kNf4, .double_quant = true};
  query.parallel.data_parallel_size = 1;
  query.parallel.recompute_granularity = RecomputeGranularity::kFull;
  query.parallel.recompute_method = RecomputeMethod::kUniform;
  query.parallel.recompute_num_layers = 1;
  query.seq_length = 2048;
  RankMemory memory = plan_memory(query).ranks[0];
  constexpr double kGiB = 1 << 30;
  EXPECT_LE(static_cast<double>(memory.total()) / kGiB, 7.4)
      << memory.weights / kGiB << " " << memory.gradients / kGiB << " " << memory.optimizer / kGiB
      << " " << memory.activations / kGiB;
}

TEST(MemoryPlan, ExpertsAreRecomputedByNamesOfTheirOwn) {
  auto activations = [](std::int64_t experts, const std::vector<std::string>& parts) {
    ModelConfig model = test::tiny_llama();
    model.moe.num_experts = experts;
    MemoryQuery query = middle(model, Dtype::kF32);
    query.parallel.recompute_granularity = RecomputeGranularity::kSelective;
    query.parallel.recompute_modules = parts;
    return plan_memory(query).ranks[0].activations;
  };
  EXPECT_LT(activations(4, {"moe_act"}), activations(4, {}));
  EXPECT_LT(activations(4, {"moe"}), activations(4, {"moe_act"}));
  EXPECT_EQ(activations(4, {"moe"}), activations(4, {"mlp"}));
  EXPECT_EQ(activations(0, {"moe", "moe_act"}), activations(0, {}));
}

// A model too large for any machine, over thousands of ranks.
TEST(MemoryPlan, AsksForNoMemoryItself) {
  MemoryQuery query;
  query.model = test::tiny_llama();
  query.model.num_layers = 96;
  query.model.hidden_size = 16384;
  query.model.num_attention_heads = 128;
  query.model.num_query_groups = 8;
  query.model.kv_channels = 128;
  query.model.ffn_hidden_size = 53248;
  query.model.vocab_size = 128256;
  query.model.max_position_embeddings = query.seq_length = 8192;
  query.dtype = Dtype::kBf16;
  query.micro_batches = 32;
  query = with_layout(query, 8, 16, 16, Strategy::kOptim);
  MemoryPlan plan = plan_memory(query);
  ASSERT_EQ(plan.ranks.size(), 2048u);
  EXPECT_GT(plan.parameters, 300'000'000'000);
  EXPECT_EQ(plan.ranks[0].in_flight, 16);
  EXPECT_EQ(plan.ranks[2047].in_flight, 1);
  // With 1F1B a stage holds one micro-batch less than the one before.
  EXPECT_GT(plan.ranks[128].activations, plan.ranks[256].activations);
}

}  // namespace
}  // namespace bev
