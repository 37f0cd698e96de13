// Tiny models behind an inference engine, and prompts for them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "backend/cpu/cpu_kernels.h"
#include "base/philox.h"
#include "comm/world.h"
#include "infer/generate.h"
#include "parallel/engine.h"
#include "tests/support/expect_error.h"
#include "tests/support/layouts.h"
#include "tests/support/logits.h"
#include "tests/support/selection.h"

namespace bev::test {

using Prompts = std::vector<std::vector<std::int32_t>>;

struct Case {
  ModelConfig model;
  Dtype dtype = Dtype::kF64;
  int tp = 1;
  int threads = 1;
  int pp = 1;
  int dp = 1;
  int ep = 1;
  const Kernels* kernels = &cpu_kernels();
};

inline EngineOptions engine_options(const Case& test_case) {
  EngineOptions options;
  options.model = test_case.model;
  options.parallel.tensor_model_parallel_size = test_case.tp;
  options.parallel.pipeline_model_parallel_size = test_case.pp;
  options.parallel.data_parallel_size = test_case.dp;
  options.parallel.expert_model_parallel_size = test_case.ep;
  options.parallel.expert_tensor_parallel_size = test_case.ep > 1 ? 1 : test_case.tp;
  options.dtype = test_case.dtype;
  options.threads = test_case.threads;
  options.gradients = false;
  return options;
}

// Calls body(Engine&) on every rank.
template <class Body>
void with_engine(const Case& test_case, const Body& body) {
  run_thread_ranks(test_case.tp * test_case.pp * test_case.dp, {60.0}, [&](World& world) {
    Engine engine(world, *test_case.kernels, engine_options(test_case));
    body(engine);
  });
}

inline Prompts make_prompts(const ModelConfig& model, const std::vector<std::size_t>& lengths) {
  Prompts prompts;
  for (std::size_t length : lengths) {
    auto& prompt = prompts.emplace_back();
    for (std::size_t i = 0; i < length; ++i) {
      std::uint32_t bits = philox(
          {static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(prompts.size()), 0, 0}, 99)[0];
      prompt.push_back(
          static_cast<std::int32_t>(bits % static_cast<std::uint32_t>(model.vocab_size)));
    }
  }
  return prompts;
}

inline Request request_for(std::int64_t max_new_tokens, double temperature = 0) {
  Request request;
  request.max_new_tokens = max_new_tokens;
  request.sampling.temperature = temperature;
  request.sampling.seed = 5;
  return request;
}

// A request like `like` for each prompt.
inline std::vector<Request> requests_for(const Prompts& prompts, const Request& like) {
  std::vector<Request> requests;
  for (const auto& prompt : prompts) {
    Request& request = requests.emplace_back(like);
    request.prompt = prompt;
    request.stream = like.stream + std::ssize(requests) - 1;
  }
  return requests;
}

// The first sequence of each result.
inline std::vector<SequenceResult> first_sequences(const std::vector<RequestResult>& results) {
  std::vector<SequenceResult> out;
  for (const RequestResult& result : results) out.push_back(result.sequences.at(0));
  return out;
}

// What world rank 0 gets. `options` limits the engine; block_tokens 4 makes several blocks.
inline std::vector<RequestResult> run_requests(const Case& test_case,
                                               const std::vector<Request>& requests,
                                               InferenceOptions options = {.block_tokens = 4}) {
  std::vector<RequestResult> results;
  with_engine(test_case, [&](Engine& engine) {
    InferenceEngine inference(engine.model(), options_for(requests, options));
    std::vector<RequestResult> mine = generate(inference, requests);
    BlockUsage usage = inference.blocks();
    EXPECT_EQ(usage.used, 0);
    EXPECT_EQ(usage.free + usage.cached, usage.total);
    if (engine.model().mesh().world().rank() == 0) results = std::move(mine);
  });
  return results;
}

inline std::vector<SequenceResult> run_prompts(const Case& test_case, const Prompts& prompts,
                                               const Request& like,
                                               InferenceOptions options = {.block_tokens = 4}) {
  return first_sequences(run_requests(test_case, requests_for(prompts, like), options));
}

// Logits of the last of `tokens`, without a cache.
inline std::vector<double> last_logits(RankModel& model, const std::vector<std::int32_t>& tokens) {
  TokenSample sample;
  sample.tokens = tokens;
  sample.targets.assign(tokens.size(), -1);
  sample.weights.assign(tokens.size(), 0.0f);
  sample.documents = {static_cast<std::int32_t>(tokens.size())};
  MicroBatch batch = make_micro_batch(model.ctx(), std::span(&sample, 1), 0);
  Tensor logits = whole_logits(model, batch);
  auto last = static_cast<std::int64_t>(tokens.size()) - 1;
  std::vector<double> row;
  visit_float(logits.dtype(), [&](auto zero) {
    const auto* values = logits.rows(last, last + 1).as<decltype(zero)>();
    for (std::int64_t i = 0; i < logits.shape()[1]; ++i) {
      row.push_back(static_cast<double>(values[i]));
    }
  });
  return row;
}

inline std::vector<double> log_softmax(std::vector<double> row) {
  double largest = *std::max_element(row.begin(), row.end()), sum = 0;
  for (double z : row) sum += std::exp(z - largest);
  for (double& z : row) z -= largest + std::log(sum);
  return row;
}

inline ModelConfig windowed_llama() {
  ModelConfig model = tiny_llama();
  model.window_size = 3;
  model.window_layers = {2};
  model.rotary_base_local = 500;
  model.qk_layernorm = true;
  model.final_logit_softcapping = 4;
  model.attn_logit_softcapping = 2;
  model.norm_placement = NormPlacement::kPreAndPost;
  model.apply_layernorm_1p = true;
  model.embedding_multiplier = 3;
  return model;
}

inline ModelConfig neox_like() {
  ModelConfig model = tiny_gpt();
  model.position_embedding_type = PositionKind::kRope;
  model.rotary_percent = 0.67;
  model.rotary_interleaved = true;
  model.parallel_residual = true;
  model.num_query_groups = 1;
  return model;
}

// 512 wide, products over 2048: as many sums as make an order matter.
inline ModelConfig wide_llama() {
  ModelConfig model = tiny_llama();
  model.num_layers = 2;
  model.hidden_size = 512;
  model.ffn_hidden_size = 2048;
  model.num_attention_heads = 8;
  model.num_query_groups = 2;
  model.kv_channels = 64;
  model.vocab_size = 259;
  return model;
}

inline ModelConfig wide_moe() {
  ModelConfig model = wide_llama();
  model.moe.num_experts = 6;
  model.moe.topk = 2;
  model.moe.ffn_hidden_size = 256;
  return model;
}

inline ModelConfig wide_mla() {
  ModelConfig model = tiny_deepseek();
  model.num_layers = 2;
  model.hidden_size = 256;
  model.q_lora_rank = 96;
  model.kv_lora_rank = 64;
  model.qk_head_dim = 48;
  model.qk_pos_emb_head_dim = 16;
  model.v_head_dim = 32;
  return model;
}

inline void expect_near(const std::vector<SequenceResult>& a, const std::vector<SequenceResult>& b,
                        double tolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t s = 0; s < a.size(); ++s) {
    EXPECT_EQ(a[s].tokens, b[s].tokens) << "sequence " << s;
    ASSERT_EQ(a[s].logprobs.size(), b[s].logprobs.size());
    for (std::size_t i = 0; i < a[s].logprobs.size(); ++i) {
      EXPECT_NEAR(a[s].logprobs[i], b[s].logprobs[i], tolerance) << "sequence " << s << ", " << i;
    }
  }
}

}  // namespace bev::test
