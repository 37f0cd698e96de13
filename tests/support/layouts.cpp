#include "tests/support/layouts.h"

#include <algorithm>
#include <cmath>

#include "backend/cpu/cpu_kernels.h"
#include "base/text.h"

namespace bev::test {

ModelConfig tiny_gpt() {
  ModelConfig model;
  model.family = "gpt2";
  model.num_layers = 4;
  model.hidden_size = 24;
  model.num_attention_heads = 4;
  model.ffn_hidden_size = 40;
  model.vocab_size = 61;
  model.max_position_embeddings = 32;
  model.activation = Activation::kGeluTanh;
  model.init_method_std = 0.2;
  return model;
}

ModelConfig tiny_llama() {
  ModelConfig model;
  model.family = "llama";
  model.num_layers = 4;
  model.hidden_size = 20;
  model.num_attention_heads = 6;
  model.num_query_groups = 2;
  model.kv_channels = 6;
  model.ffn_hidden_size = 28;
  model.vocab_size = 53;
  model.max_position_embeddings = 32;
  model.position_embedding_type = PositionKind::kRope;
  model.normalization = NormKind::kRmsNorm;
  model.activation = Activation::kSilu;
  model.gated = true;
  model.add_bias_linear = false;
  model.untie_embeddings_and_output_weights = true;
  model.init_method_std = 0.2;
  return model;
}

ModelConfig tiny_deepseek() {
  ModelConfig model = tiny_llama();
  model.family = "deepseek_v3";
  model.num_attention_heads = 8;
  model.num_query_groups = 8;
  model.kv_channels = 0;
  model.multi_latent_attention = true;
  model.q_lora_rank = 9;
  model.kv_lora_rank = 7;
  model.qk_head_dim = 5;
  model.qk_pos_emb_head_dim = 4;
  model.v_head_dim = 6;
  model.qk_layernorm = true;
  model.rotary_interleaved = true;
  model.add_qkv_bias = true;
  model.rope_scaling.kind = RopeScalingKind::kYarn;
  model.rope_scaling.factor = 4;
  model.rope_scaling.original_max_positions = 8;
  model.rope_scaling.mscale_all_dim = 1.2;
  return model;
}

ModelConfig tiny_gpt_oss() {
  ModelConfig model = tiny_llama();
  model.num_attention_heads = 8;
  model.num_query_groups = 4;
  model.softmax_type = SoftmaxSink::kLearned;
  model.window_size = 3;
  model.window_layers = {1, 0, 1, 0};
  model.add_bias_linear = true;
  model.activation = Activation::kQuickGelu;
  model.activation_clamp = 0.4;
  model.glu_linear_offset = 1;
  return model;
}

ModelConfig mixtral_like() {
  ModelConfig model = tiny_llama();
  model.family = "mixtral";
  model.moe.num_experts = 5;
  model.moe.topk = 2;
  model.moe_training.aux_loss_coeff = {0.3};
  model.moe_training.z_loss_coeff = 0.05;
  return model;
}

ModelConfig deepseek_like() {
  ModelConfig model = tiny_deepseek();
  model.mtp_num_layers = 1;
  model.moe.num_experts = 12;
  model.moe.layer_freq = {0, 1, 1, 0};
  model.moe.ffn_hidden_size = 12;
  model.moe.topk = 3;
  model.moe.score_function = RouterScore::kSigmoid;
  model.moe.num_groups = 4;
  model.moe.group_topk = 2;
  model.moe.scaling_factor = 2.5;
  model.moe.expert_bias = true;
  model.moe.shared_expert_size = 20;
  model.moe_training.load_balancing = {"seq_aux_loss"};
  model.moe_training.aux_loss_coeff = {0.2};
  model.moe_training.bias_update_rate = 0.02;
  return model;
}

ModelConfig gpt_oss_like() {
  ModelConfig model = tiny_gpt_oss();
  model.family = "gpt_oss";
  model.mtp_num_layers = 1;
  model.moe.num_experts = 6;
  model.moe.topk = 2;
  model.moe.router_bias = true;
  model.moe_training.aux_loss_coeff = {0.1};
  return model;
}

ModelConfig uneven_gpt() {
  ModelConfig model = tiny_gpt();
  model.num_layers = 5;
  model.hidden_size = 16;
  model.num_attention_heads = 8;
  model.ffn_hidden_size = 24;
  model.vocab_size = 37;
  model.hidden_dropout = 0.2;
  model.attention_dropout = 0.3;
  return model;
}

ModelConfig uneven_llama() {
  ModelConfig model = tiny_llama();
  model.num_layers = 9;
  model.hidden_size = 12;
  model.num_attention_heads = 8;
  model.num_query_groups = 2;
  model.kv_channels = 4;
  model.ffn_hidden_size = 20;
  model.vocab_size = 29;
  model.hidden_dropout = 0.1;
  model.attention_dropout = 0.1;
  model.window_size = 3;
  model.window_layers = {2};
  model.qk_layernorm = true;
  return model;
}

LayoutAnswer run_tiny(const TinyRun& tiny) {
  LayoutRun run;
  run.engine.model = tiny.model;
  run.engine.parallel = tiny.parallel;
  run.engine.parallel.data_parallel_size =
      std::max<std::int64_t>(tiny.parallel.data_parallel_size, 1);
  run.engine.dtype = tiny.dtype;
  run.engine.deterministic = tiny.deterministic;
  run.engine.fp8 = tiny.fp8;
  run.engine.optim = tiny.optim;
  run.engine.base = tiny.base;
  run.engine.optim.groups = tiny.groups;
  run.lr = tiny.lr;
  run.engine.threads = static_cast<int>(tiny.threads);
  run.engine.params_norm = run.engine.zero_gradients = true;
  run.engine.max_attention_logit = tiny.max_attention_logit;
  run.steps = tiny.steps;
  run.micro_batch_size = tiny.micro_batch_size;
  run.filter = tiny.filter;
  run.engine.objective = tiny.objective;
  run.engine.metrics = tiny.metrics;
  run.preparation = tiny.preparation;
  run.timeout_seconds = tiny.timeout_seconds;
  std::vector<StepSamples> batches;
  for (std::int64_t step = 0; step < tiny.steps; ++step) {
    auto seed = 77 + static_cast<std::uint64_t>(step);
    batches.push_back(tiny.samples != nullptr
                          ? tiny.samples(seed)
                          : random_samples(tiny.model.vocab_size, tiny.global_batch_size,
                                           tiny.sequence_length, seed));
  }
  return run_layout(run, tiny.kernels ? *tiny.kernels : cpu_kernels(), batches);
}

namespace {
// Values near zero are compared with an absolute tolerance.
bool near(double expected, double actual, double tolerance) {
  return std::abs(expected - actual) <= tolerance * std::max(std::abs(expected), 1.0);
}
// Expert biases are updated by sign and count in neither statistic.
template <class Term>
double sum_over(const NamedTensors& tensors, const Term& term) {
  double sum = 0;
  for (const auto& [name, values] : tensors) {
    if (name.ends_with(".expert_bias")) continue;
    for (double value : values) sum += term(value);
  }
  return sum;
}
}  // namespace

namespace {
// Rounding decides whether a gradient is 0.
NamedTensors without_zeros(NamedTensors reports) {
  reports.erase(kNumZeros);
  return reports;
}
}  // namespace

std::string wrong_numbers(const LayoutAnswer& answer, double tolerance) {
  if (!answer.reports.contains(kParamsNorm)) return "";  // the run did not record them
  std::string out;
  double zeros = sum_over(answer.gradients, [](double value) { return value == 0 ? 1 : 0; });
  double squares = sum_over(answer.weights, [](double value) { return value * value; });
  double told_zeros = answer.reports.at(kNumZeros).front();
  double told_norm = answer.reports.at(kParamsNorm).back();
  if (told_zeros != zeros) {
    out += concat("\n  zeros of the gradient: ", zeros, ", told ", told_zeros);
  }
  if (!near(std::sqrt(squares), told_norm, tolerance)) {
    out += concat("\n  norm of weights: ", std::sqrt(squares), ", told ", told_norm);
  }
  return out;
}

std::string answer_difference(const LayoutAnswer& expected, const LayoutAnswer& actual,
                              const AnswerTolerance& tolerance) {
  if (actual.losses.size() != expected.losses.size()) return "another number of steps";
  std::string out = wrong_numbers(actual, tolerance.gradients);
  if (actual.tokens != expected.tokens) out += "\n  another number of tokens";
  for (std::size_t i = 0; i < expected.losses.size(); ++i) {
    auto compare = [&](const char* what, const std::vector<double>& one,
                       const std::vector<double>& other, double allowed) {
      if (one.empty() || allowed == 0 || near(one[i], other[i], allowed)) return;
      out += concat("\n  ", what, " of step ", i, ": ", one[i], " became ", other[i]);
    };
    double allowed = i == 0 ? tolerance.gradients : tolerance.weights;
    compare("loss", expected.losses, actual.losses, allowed);
    compare("gradient norm", expected.grad_norms, actual.grad_norms, allowed);
  }
  auto compare = [&](const char* what, const NamedTensors& one, const NamedTensors& other,
                     double allowed) {
    TensorDifference worst = largest_difference(one, other, tolerance.floor);
    if (allowed == 0 || worst.value <= allowed) return;
    out += concat("\n  ", what, " ", worst.name, " differs by ", worst.value);
  };
  compare("report of", without_zeros(expected.reports), without_zeros(actual.reports),
          tolerance.weights);
  compare("gradient of", expected.gradients, actual.gradients, tolerance.gradients);
  compare("weight", expected.weights, actual.weights, tolerance.weights);
  return out;
}

}  // namespace bev::test
