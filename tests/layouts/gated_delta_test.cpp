// Layers of the gated delta rule and attention with a gate give one rank's answer under every kind
// of split: gradients to 1e-11 and weights after three steps to 1e-9, in f64. And generation from
// states of constant size.
#include <gtest/gtest.h>

#include <cmath>

#include "backend/cpu/cpu_kernels.h"
#include "infer/generate.h"
#include "tests/support/layouts.h"
#include "verify/layouts.h"

namespace bev::test {
namespace {

// Layers with one part and with two; value heads share key heads.
ModelConfig delta_model() {
  ModelConfig model = tiny_llama();
  model.num_layers = 4;
  model.hybrid_layer_pattern = "gaGg";
  model.num_attention_heads = 8;
  model.num_query_groups = 2;
  model.kv_channels = 4;
  model.rotary_percent = 0.5;
  model.qk_layernorm = true;
  model.apply_layernorm_1p = true;
  model.attention_output_gate = true;
  model.delta = {.conv_kernel = 3,
                 .key_head_dim = 5,
                 .value_head_dim = 4,
                 .num_key_heads = 4,
                 .num_value_heads = 8};
  return model;
}

ModelConfig delta_experts() {
  ModelConfig model = mixtral_like();
  model.hybrid_layer_pattern = std::string(static_cast<std::size_t>(model.num_layers), 'g');
  model.hybrid_layer_pattern.back() = 'a';
  model.attention_output_gate = true;
  model.moe.shared_expert_size = 12;
  model.moe.shared_expert_gate = true;
  model.delta = {.conv_kernel = 4,
                 .key_head_dim = 4,
                 .value_head_dim = 6,
                 .num_key_heads = 2,
                 .num_value_heads = 2};
  return model;
}

// Documents of other lengths than those of the ranks' chunks.
StepSamples packed_samples(std::uint64_t seed) {
  StepSamples samples = random_samples(61, 4, 17, seed);
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const auto first = static_cast<std::int32_t>(1 + (seed + 3 * i) % 9);
    samples[i].documents = {first, 2, 15 - first};
  }
  return samples;
}

void expect_one_ranks_answer(TinyRun run, const std::vector<std::string>& layouts) {
  // Router losses depend on the micro-batch; nothing else depends on its size.
  TinyRun single = run;
  if (!run.model.moe.any()) single.micro_batch_size = single.global_batch_size;
  LayoutAnswer expected = run_tiny(single);
  EXPECT_NE(expected.losses[0], expected.losses[2]);
  for (const std::string& layout : layouts) {
    run.parallel = parse_layouts(layout, {}).at(0);
    EXPECT_EQ(answer_difference(expected, run_tiny(run)), "") << layout;
  }
  for (const char* layout : {"tp1", "cp2p2p"}) {
    run.parallel = parse_layouts(layout, {}).at(0);
    run.parallel.recompute_granularity = RecomputeGranularity::kFull;
    run.parallel.recompute_num_layers = 1;
    EXPECT_EQ(answer_difference(expected, run_tiny(run)), "") << layout << " with recompute";
  }
}

TEST(GatedDelta, LayersGiveOneRanksAnswer) {
  TinyRun run;
  run.model = delta_model();
  expect_one_ranks_answer(
      run, {"tp2", "tp2sp", "tp4sp", "pp2", "pp2vpp2", "cp2p2p", "cp3p2p", "cp2a2a", "cp2allgather",
            "dp2zero3", "tp2sp,pp2,dp2zero2", "tp2,cp2p2p,dp2zero3"});
}

TEST(GatedDelta, PackedDocumentsGiveOneRanksAnswer) {
  TinyRun run;
  run.model = delta_model();
  run.model.vocab_size = 61;
  run.samples = packed_samples;
  expect_one_ranks_answer(run, {"tp2sp", "cp2p2p", "cp4p2p", "pp2,dp2"});
}

TEST(GatedDelta, LayersWithExpertsGiveOneRanksAnswer) {
  TinyRun run;
  run.model = delta_experts();
  expect_one_ranks_answer(
      run, {"tp2sp", "dp2,ep2", "dp2zero3,ep2", "tp2sp,dp2,ep2", "pp2,dp2", "cp2p2p,dp2,ep2"});
}

// Log-probabilities of tokens 1.. of a sequence by one forward over all of it.
class Forward : public OutputSink {
 public:
  explicit Forward(RankModel& model) : model_(model) {}
  void on_outputs(std::int64_t, std::span<const Var> outputs) override {
    Tensor all = stage_logits(model_.ctx(), model_.head_stage(), outputs[0], outputs[0].shape()[0]);
    logits_ = model_.ctx().download<double>(all);
  }
  std::vector<double> log_probs(const std::vector<std::int32_t>& tokens) {
    TokenSample sample = labelled_sample(tokens, tokens);
    std::vector<MicroBatch> batches = rank_micro_batches(model_.ctx(), {&sample, 1}, 1);
    model_.forward_outputs(batches, *this);
    auto columns = static_cast<std::size_t>(model_.options().model.vocab_size);
    std::vector<double> out;
    for (std::size_t t = 0; t + 1 < tokens.size(); ++t) {
      const double* row = logits_.data() + t * columns;
      double sum = 0;
      for (std::size_t v = 0; v < columns; ++v) sum += std::exp(row[v]);
      out.push_back(row[tokens[t + 1]] - std::log(sum));
    }
    return out;
  }

 private:
  RankModel& model_;
  std::vector<double> logits_;
};

void expect_same_log_probs(RankModel& model,
                           const std::vector<std::vector<std::int32_t>>& prompts) {
  constexpr std::int64_t kNew = 9;
  std::vector<Request> requests(prompts.size());
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    requests[i].prompt = prompts[i];
    requests[i].max_new_tokens = kNew;
  }
  InferenceEngine inference(model, options_for(requests, {.block_tokens = 4}));
  std::vector<RequestResult> results = generate(inference, requests);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const SequenceResult& result = results[i].sequences.at(0);
    std::vector<std::int32_t> all = prompts[i];
    all.insert(all.end(), result.tokens.begin(), result.tokens.end());
    const std::vector<double> expected = Forward(model).log_probs(all);
    ASSERT_EQ(result.logprobs.size(), static_cast<std::size_t>(kNew));
    for (std::size_t t = 0; t < result.logprobs.size(); ++t) {
      EXPECT_NEAR(result.logprobs[t], expected[prompts[i].size() - 1 + t], 1e-11);
    }
  }
}

// Prompts that are shorter than the convolution, and longer than a chunk.
std::vector<std::vector<std::int32_t>> unequal_prompts() {
  std::vector<std::vector<std::int32_t>> prompts = {{3, 1, 4, 1, 5}, {9, 2}, {6}, {}};
  for (std::int32_t i = 0; i < 70; ++i) prompts.back().push_back((7 * i + 3) % 50);
  return prompts;
}

TEST(GatedDelta, GenerationFromStatesIsOneForward) {
  for (int ranks : {1, 2}) {
    run_thread_ranks(ranks, {}, [ranks](World& world) {
      EngineOptions options;
      options.model = delta_model();
      options.model.max_position_embeddings = 128;
      options.dtype = Dtype::kF64;
      options.parallel.data_parallel_size = 1;
      options.parallel.tensor_model_parallel_size = ranks;
      options.gradients = false;
      Rank rank(world, cpu_kernels(), options);
      RankModel model(rank, options);
      const std::vector<StateSpec> states = model.stage().states(model.ctx());
      // Three tokens of 5 x 4 states for 8 heads, and two of 2 x 20 + 32 channels before them.
      for (std::size_t i = 0; i < states.size(); ++i) {
        EXPECT_EQ(states[i].key_columns > 0, i == 1);
        EXPECT_EQ(states[i].sequence_elements, i == 1 ? 0 : (8 * 5 * 4 + 2 * 72) / ranks);
      }
      if (ranks == 1) expect_same_log_probs(model, unequal_prompts());
    });
  }
}

}  // namespace
}  // namespace bev::test
