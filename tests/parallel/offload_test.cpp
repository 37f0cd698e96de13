// Activation offload to host memory: results are bitwise unchanged in combination with every other
// feature.
#include <gtest/gtest.h>

#include <map>

#include "base/text.h"
#include "comm/world.h"
#include "tests/support/layouts.h"
#include "tests/support/lazy_lane.h"

namespace bev::test {
namespace {

using Recompute = RecomputeGranularity;

void by_layer(OffloadConfig& offload, std::int64_t layers) {
  offload.cpu_offloading_num_layers = layers;
  offload.min_offloaded_tensor_size = 1;
}

void by_part(OffloadConfig& offload, std::vector<std::string> parts) {
  offload.fine_grained_activation_offloading = true;
  offload.offload_modules = std::move(parts);
  offload.min_offloaded_tensor_size = 1;
}

// Compares the run without offload with each kind of offload.
void expect_no_change(const TinyRun& plain) {
  const Kernels& kernels = lazy_kernels();
  LayoutAnswer expected = run_tiny(plain);
  std::map<std::string, TinyRun> runs;
  by_layer((runs["all layers"] = plain).parallel.offload, plain.model.num_layers);
  by_layer((runs["one layer"] = plain).parallel.offload, 1);
  by_part((runs["all parts"] = plain).parallel.offload, offload_part_names());
  for (auto& [name, run] : runs) {
    run.kernels = &kernels;
    LayoutAnswer answer = run_tiny(run);
    EXPECT_EQ(answer.losses, expected.losses) << name;
    EXPECT_EQ(answer.grad_norms, expected.grad_norms) << name;
    EXPECT_EQ(answer.gradients, expected.gradients) << name;
    EXPECT_EQ(answer.weights, expected.weights) << name;
  }
}

TinyRun run_of(ModelConfig model, Dtype dtype = Dtype::kF32) {
  TinyRun run;
  run.model = std::move(model);
  run.dtype = dtype;
  run.steps = 2;
  return run;
}

ModelConfig experts() {
  ModelConfig model = tiny_llama();
  model.moe.num_experts = 4;
  model.moe.topk = 2;
  model.moe.shared_expert_size = 12;
  model.moe_training.aux_loss_coeff = {0.1};
  return model;
}

TEST(Offload, ChangesNoBitOfAnyKindOfModel) {
  ModelConfig norms = tiny_llama();
  norms.norm_placement = NormPlacement::kPreAndPost;
  norms.qk_layernorm = norms.add_qkv_bias = true;
  norms.hidden_dropout = norms.attention_dropout = 0.1;
  ModelConfig side_by_side = tiny_gpt();
  side_by_side.parallel_residual = true;
  ModelConfig mtp = tiny_deepseek();
  mtp.mtp_num_layers = 1;
  // Tied embeddings, dropout, biases; windows; MLA; sinks; experts.
  for (const ModelConfig& model :
       {uneven_gpt(), uneven_llama(), mtp, tiny_gpt_oss(), norms, side_by_side, experts()}) {
    SCOPED_TRACE(model.family);
    expect_no_change(run_of(model));
  }
}

TEST(Offload, MovesWhatRecomputeKeeps) {
  for (const ModelConfig& model : {uneven_gpt(), experts()}) {
    TinyRun run = run_of(model, Dtype::kBf16);
    run.parallel.recompute_granularity = Recompute::kFull;
    for (std::int64_t layers : {1, 2}) {
      run.parallel.recompute_num_layers = layers;
      expect_no_change(run);
    }
    run.parallel.recompute_method = RecomputeMethod::kBlock;
    expect_no_change(run);
    run.parallel.recompute_granularity = Recompute::kSelective;
    run.parallel.recompute_modules = {"core_attn", "layernorm", "activation"};
    expect_no_change(run);
    run.parallel.recompute_modules = {"mlp"};
    expect_no_change(run);
  }
}

TEST(Offload, ChangesNoBitUnderPipelines) {
  TinyRun run = run_of(uneven_gpt());
  run.parallel.pipeline_model_parallel_size = 2;
  expect_no_change(run);
  run.parallel.pipeline_schedule = PipelineSchedule::kZeroBubbleH1;
  expect_no_change(run);
  run.parallel.pipeline_schedule = PipelineSchedule::kZeroBubbleV;
  run.parallel.recompute_granularity = Recompute::kFull;
  expect_no_change(run);
  run.parallel.recompute_granularity = Recompute::kNone;
  run.parallel.pipeline_schedule = PipelineSchedule::k1F1B;
  run.parallel.num_virtual_stages_per_pipeline_rank = 2;
  expect_no_change(run);
}

TEST(Offload, ChangesNoBitUnderTensorAndContextParallelism) {
  TinyRun run = run_of(uneven_gpt());
  run.parallel.tensor_model_parallel_size = 2;
  run.parallel.sequence_parallel = run.parallel.tp_comm_overlap = true;
  run.parallel.data_parallel_size = 2;
  run.parallel.data_parallel_sharding_strategy = ShardingStrategy::kOptimGradsParams;
  expect_no_change(run);
  run = run_of(uneven_gpt());
  run.parallel.context_parallel_size = 2;
  for (const char* type : {"p2p", "a2a", "allgather"}) {
    run.parallel.cp_comm_type = {type};
    expect_no_change(run);
  }
  run = run_of(experts());
  run.parallel.data_parallel_size = 2;
  run.parallel.expert_model_parallel_size = 2;
  expect_no_change(run);
}

TEST(Offload, ChangesNoBitOfFp8) {
  for (Fp8Scaling recipe : {Fp8Scaling::kTensorwise, Fp8Scaling::kDelayed}) {
    TinyRun run = run_of(tiny_llama(), Dtype::kBf16);
    run.model.hidden_size = 32;
    run.model.num_attention_heads = 4;
    run.model.num_query_groups = 2;
    run.model.kv_channels = 16;
    run.model.ffn_hidden_size = 64;
    run.micro_batch_size = 2;
    run.fp8.fp8_format = Fp8FormatChoice::kHybrid;
    run.fp8.fp8_recipe = recipe;
    expect_no_change(run);
  }
}

// For one rank: peak activations of a step on the device and on the host, and the host memory
// reserved after each step.
struct Bytes {
  std::size_t device = 0, host = 0;
  std::vector<std::size_t> reserved;
};

Bytes bytes_of(const OffloadConfig& offload, Recompute recompute = Recompute::kNone) {
  EngineOptions options;
  options.model = tiny_llama();
  options.model.num_layers = 8;
  options.parallel.data_parallel_size = 1;
  options.parallel.offload = offload;
  options.parallel.recompute_granularity = recompute;
  Bytes bytes;
  run_thread_ranks(1, {}, [&](World& world) {
    Engine engine(world, cpu_kernels(), options);
    auto samples = random_samples(options.model.vocab_size, 2, 64, 5);
    auto batches = rank_micro_batches(engine.model().ctx(), samples, 1);
    for (int step = 1; step <= 3; ++step) {
      engine.model().rank().arena().reset_peak();
      engine.train_step(batches, {step, 1e-3, 0.1, 1.0, 1.0});
      for (const auto& [tag, peak] : engine.model().rank().arena().peak_by_tag()) {
        if (tag == "activations") bytes.device = std::max(bytes.device, peak);
      }
      if (engine.offloaded() == nullptr) continue;
      EXPECT_EQ(engine.offloaded()->in_use(), 0u);
      bytes.host = engine.offloaded()->peak();
      bytes.reserved.push_back(engine.offloaded()->reserved());
    }
  });
  return bytes;
}

TEST(Offload, LeavesTheDeviceThePeakOfTwoLayers) {
  OffloadConfig offload;
  auto all = static_cast<double>(bytes_of(offload).device);
  by_layer(offload, 8);
  Bytes layers = bytes_of(offload);
  // The activations of the last of eight layers stay, and those of two are in flight.
  EXPECT_LT(static_cast<double>(layers.device), 0.45 * all);
  EXPECT_GT(static_cast<double>(layers.host), 0.8 * all);
  // Nothing is allocated from the second step on.
  EXPECT_EQ(layers.reserved[0], layers.reserved[2]);
  by_layer(offload, 4);
  Bytes half = bytes_of(offload);
  EXPECT_GT(half.device, layers.device);
  EXPECT_LT(static_cast<double>(half.device), 0.75 * all);
  EXPECT_NEAR(static_cast<double>(half.host), static_cast<double>(layers.host) * 4 / 7,
              0.01 * static_cast<double>(layers.host));
}

TEST(Offload, TakesTheInputsOfRecomputedLayers) {
  OffloadConfig offload;
  auto all = bytes_of(offload, Recompute::kFull).device;
  by_layer(offload, 8);
  Bytes layers = bytes_of(offload, Recompute::kFull);
  std::size_t input = 64 * static_cast<std::size_t>(tiny_llama().hidden_size) * sizeof(float);
  EXPECT_EQ(layers.host, 7 * input);
  EXPECT_GE(all - layers.device, 4 * input);
  offload = {};
  by_part(offload, {"attn_norm"});
  EXPECT_EQ(bytes_of(offload, Recompute::kFull).host, 7 * input);
}

TEST(Offload, MovesAsMuchAsAskedFor) {
  OffloadConfig offload;
  by_part(offload, {"attn_norm"});
  std::size_t input = 64 * static_cast<std::size_t>(tiny_llama().hidden_size) * sizeof(float);
  EXPECT_EQ(bytes_of(offload).host, 7 * input);
  offload.activation_offload_fraction = 0.5;
  EXPECT_EQ(bytes_of(offload).host, 4 * input);
  offload.activation_offload_fraction = 0;
  EXPECT_EQ(bytes_of(offload).host, 0u);
  offload.activation_offload_fraction = 1;
  // The sum that the second norm saves has the same size, the inputs of the GEMMs are larger.
  offload.offload_modules = {"attn_norm", "mlp_norm"};
  EXPECT_EQ(bytes_of(offload).host, 14 * input);
  offload.min_offloaded_tensor_size = static_cast<std::int64_t>(input / sizeof(float)) + 1;
  EXPECT_EQ(bytes_of(offload).host, 0u);
}

}  // namespace
}  // namespace bev::test
