#include "ops/moe/moe.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/router.h"
#include "ops/elementwise.h"
#include "ops/moe/expert_exchange.h"
#include "tests/support/op_checks.h"

namespace bev::test {
namespace {

// cuBLASLt has no bf16 GEMM into f32 for rows that are not whole 16-byte words.
constexpr std::int64_t kTokens = 7, kHidden = 8, kExperts = 8;

OpCase route_case(std::string name, const RoutingRule& rule) {
  OpCase test{std::move(name), {{{kTokens, kHidden}}}, {{{kExperts, kHidden}}, {{kExperts}}}};
  test.build = [rule](Bench& bench, const std::vector<Var>& in) {
    Var logits = router_logits(bench.ctx, in[0], *bench.params[0], bench.params[1].get());
    RouterSpec spec;
    spec.rule = rule;
    return OpOutputs{{route(bench.ctx, logits, spec, nullptr).probs}};
  };
  return test;
}

const OpRows kRouteRows(
    "Route",
    {route_case("softmax over the chosen", {.topk = 3, .scaling = 1.5}),
     route_case("softmax over all experts", {.topk = 3, .pre_softmax = true}),
     route_case("one", {.topk = 1, .pre_softmax = true}), route_case("all", {.topk = kExperts}),
     route_case("sigmoid", {.topk = 3, .score = RouterScore::kSigmoid, .scaling = 2.5}),
     route_case("sigmoid as it is",
                {.topk = 2, .score = RouterScore::kSigmoid, .normalize = false}),
     route_case("sqrtsoftplus", {.topk = 3, .score = RouterScore::kSqrtSoftplus}),
     route_case("groups", {.topk = 3,
                           .score = RouterScore::kSigmoid,
                           .groups = 4,
                           .group_topk = 2,
                           .group_experts = 2})});

// Its gradient is zero up to rounding, so op cases cannot compare it.
TEST(Route, OneScoreOverItselfIsOneWhateverItIs) {
  for (RouterScore score : {RouterScore::kSigmoid, RouterScore::kSqrtSoftplus}) {
    Bench bench(Dtype::kF64);
    Tensor logits = bench.tensor({kTokens, kExperts}, case_numbers(kTokens * kExperts, 3));
    Tensor experts = bench.integers(std::vector<std::int32_t>(kTokens)).reshape({kTokens, 1});
    Tensor probs = bench.tensor({kTokens, 1}, std::vector<double>(kTokens));
    RoutingRule rule{.topk = 1, .score = score, .scaling = 2.5};
    const RouterKernels& kernels = bench.ctx.kernels.router;
    kernels.route(bench.ctx.stream,
                  {.logits = logits, .experts = experts, .probs = probs, .rule = rule});
    for (double prob : values_of(probs)) EXPECT_DOUBLE_EQ(prob, 2.5);
    Tensor dprobs = bench.tensor({kTokens, 1}, case_numbers(kTokens, 4));
    Tensor dlogits = bench.tensor(logits.shape(), case_numbers(logits.numel(), 5));
    kernels.route_backward(bench.ctx.stream, {.dprobs = dprobs,
                                              .logits = logits,
                                              .experts = experts,
                                              .dlogits = dlogits,
                                              .rule = rule,
                                              .balance = {}});
    for (double gradient : values_of(dlogits)) EXPECT_NEAR(gradient, 0, 1e-15);
  }
}

// Noise depends only on the token, so finite differences see the same noise.
OpCase noisy_case(std::string name, double jitter, RouterDtype dtype) {
  OpCase test = route_case(std::move(name), {});
  test.documents = {static_cast<std::int32_t>(kTokens)};
  test.training = true;
  test.build = [jitter, dtype](Bench& bench, const std::vector<Var>& in) {
    RouterSpec spec;
    spec.rule = {.topk = 3};
    spec.jitter = jitter;
    spec.dtype = dtype;
    const Param *weight = bench.params[0].get(), *bias = bench.params[1].get();
    Var logits = router_logits(bench.ctx, in[0], *weight, bias, spec, &bench.layout);
    return OpOutputs{{route(bench.ctx, logits, spec, nullptr).probs}};
  };
  return test;
}

// No GPU kernel takes f64.
OpCase f64_router_case() {
  OpCase test = noisy_case("f64", 0, RouterDtype::kF64);
  test.cpu_only = true;
  return test;
}

const OpRows kNoiseRows("RouterLogits",
                        {noisy_case("jitter", 0.3, RouterDtype::kModel),
                         noisy_case("jitter in f32", 0.3, RouterDtype::kF32), f64_router_case()});

// Logits of 24 tokens that all prefer the first experts.
std::vector<double> skewed_logits(std::int64_t tokens) {
  std::vector<double> logits = case_numbers(tokens * kExperts, 7);
  for (std::size_t i = 0; i < logits.size(); ++i)
    logits[i] -= 0.7 * static_cast<double>(i % kExperts);
  return logits;
}

// Reference: Megatron's algorithm, step by step.
std::vector<double> sinkhorn_matrix(const std::vector<double>& logits) {
  std::size_t experts = kExperts, tokens = logits.size() / experts;
  std::vector<double> cost(logits.size()), rows(tokens, 1), columns(experts, 1);
  for (std::size_t i = 0; i < cost.size(); ++i) cost[i] = std::exp(logits[i]);
  for (double error = 1; error > 1e-4;) {
    std::vector<double> old = columns;
    for (std::size_t t = 0; t < tokens; ++t) {
      double sum = 0;
      for (std::size_t e = 0; e < experts; ++e) sum += columns[e] * cost[t * experts + e];
      rows[t] = 1.0 / static_cast<double>(tokens) / (sum + 1e-8);
    }
    error = 0;
    for (std::size_t e = 0; e < experts; ++e) {
      double sum = 0;
      for (std::size_t t = 0; t < tokens; ++t) sum += rows[t] * cost[t * experts + e];
      columns[e] = 1.0 / static_cast<double>(experts) / (sum + 1e-8);
      error += std::abs(columns[e] - old[e]) / static_cast<double>(experts);
    }
  }
  for (std::size_t i = 0; i < cost.size(); ++i) cost[i] *= rows[i / experts] * columns[i % experts];
  return cost;
}

TEST(Route, SinkhornChoosesByTheBalancedMatrixAndWeighsByScores) {
  constexpr std::int64_t kMany = 24;
  std::vector<double> numbers = skewed_logits(kMany), balanced = sinkhorn_matrix(numbers);
  for (std::int64_t topk : {1, 2}) {
    Bench bench(Dtype::kF64);
    Var logits{bench.tensor({kMany, kExperts}, numbers), batch_placement(), -1, nullptr};
    RouterSpec spec;
    spec.rule = {.topk = topk, .pre_softmax = true, .normalize = false, .by_logit = true};
    if (topk == 1) spec.rule.score = RouterScore::kSigmoid;
    spec.sinkhorn = true;
    for (bool training : {true, false}) {
      bench.ctx.training = training;
      Routing routing = route(bench.ctx, logits, spec, &bench.layout);
      std::vector<std::int32_t> experts = bench.ctx.download<std::int32_t>(routing.experts);
      std::vector<double> probs = values_of(routing.probs.tensor);
      const std::vector<double>& keys = training ? balanced : numbers;
      for (std::int64_t t = 0; t < kMany; ++t) {
        auto first = keys.begin() + t * kExperts;
        auto got = static_cast<std::size_t>(t * topk);
        EXPECT_EQ(experts[got], std::max_element(first, first + kExperts) - first) << t;
        double sum = 0, own = numbers[static_cast<std::size_t>(t * kExperts + experts[got])];
        for (std::int64_t e = 0; e < kExperts; ++e) {
          sum += std::exp(numbers[static_cast<std::size_t>(t * kExperts + e)]);
        }
        double wanted = topk == 1 ? 1 / (1 + std::exp(-own)) : std::exp(own) / sum;
        EXPECT_NEAR(probs[got], wanted, 1e-12);
      }
    }
  }
}

// Columns that are almost empty have factors so large that in f32 their last digit exceeds the
// tolerance, and NaN never converges.
TEST(Route, SinkhornEnds) {
  for (double low : {-200.0, -30.0, std::nan(""), double{INFINITY}}) {
    Bench bench(Dtype::kF32);
    std::vector<double> numbers = skewed_logits(24);
    for (std::size_t i = 3; i < numbers.size(); i += kExperts) numbers[i] = low;
    Tensor bias = bench.tensor({kExperts}, std::vector<double>(kExperts));
    bench.ctx.kernels.router.sinkhorn(bench.ctx.stream,
                                      {bench.tensor({24, kExperts}, numbers), bias});
    EXPECT_EQ(values_of(bias).size(), static_cast<std::size_t>(kExperts));
  }
}

// Choices of a token with the given logits.
std::vector<std::int32_t> chosen(Bench& bench, const std::vector<double>& logits,
                                 const std::vector<double>& bias, const RoutingRule& rule) {
  auto count = static_cast<std::int64_t>(logits.size());
  Var row{bench.tensor({1, count}, logits), {}, -1, nullptr};
  RouterSpec spec;
  spec.rule = rule;
  if (!bias.empty()) spec.expert_bias = &bench.param("bias", {count}, {}, bias);
  return bench.ctx.download<std::int32_t>(route(bench.ctx, row, spec, nullptr).experts);
}

TEST(Route, EqualScoresGoToTheLowerExpertAndTheBiasOnlyChooses) {
  Bench bench(Dtype::kF64);
  using Chosen = std::vector<std::int32_t>;
  EXPECT_EQ(chosen(bench, {1, 2, 2, 2}, {}, {.topk = 2}), (Chosen{1, 2}));
  EXPECT_EQ(chosen(bench, {0, 0, 0, 0}, {}, {.topk = 3}), (Chosen{0, 1, 2}));
  RoutingRule sigmoid{.topk = 2, .score = RouterScore::kSigmoid};
  EXPECT_EQ(chosen(bench, {3, 2, 1, 0}, {0, 0, 0, 1}, sigmoid), (Chosen{3, 0}));
  // Groups {3, 0}, {2, 2}: by their best expert the first group wins, by both experts the second.
  RoutingRule best{.topk = 2, .score = RouterScore::kSigmoid, .groups = 2};
  EXPECT_EQ(chosen(bench, {3, -9, 2, 2}, {}, best), (Chosen{0, 1}));
  RoutingRule both = best;
  both.group_experts = 2;
  EXPECT_EQ(chosen(bench, {3, -9, 2, 2}, {}, both), (Chosen{2, 3}));
}

// Reference: the losses by definition, in f64.
double balance_loss(const std::vector<double>& logits, const std::vector<std::int32_t>& experts,
                    const RouterSpec& spec, const std::vector<std::int32_t>& documents) {
  std::int64_t topk = spec.rule.topk, first = 0;
  double loss = 0;
  auto add = [&](std::int64_t begin, std::int64_t count, double coefficient) {
    std::vector<double> counts(kExperts), sums(kExperts);
    for (std::int64_t t = begin; t < begin + count; ++t) {
      double total = 0;
      std::vector<double> scores(kExperts);
      for (std::int64_t e = 0; e < kExperts; ++e) {
        double x = logits[static_cast<std::size_t>(t * kExperts + e)];
        bool softmax = spec.rule.score == RouterScore::kSoftmax;
        total += scores[static_cast<std::size_t>(e)] =
            softmax ? std::exp(x) : 1 / (1 + std::exp(-x));
      }
      for (std::size_t e = 0; e < kExperts; ++e) sums[e] += scores[e] / total;
      for (std::int64_t j = 0; j < topk; ++j) {
        counts[static_cast<std::size_t>(experts[static_cast<std::size_t>(t * topk + j)])] += 1;
      }
    }
    double sum = 0;
    for (std::size_t e = 0; e < kExperts; ++e) sum += counts[e] * sums[e];
    auto n = static_cast<double>(count);
    // Weighted by its number of tokens.
    loss +=
        n * coefficient * static_cast<double>(kExperts) * sum / (static_cast<double>(topk) * n * n);
  };
  add(0, kTokens, spec.losses.aux);
  add(0, kTokens, spec.losses.global_aux);
  for (std::int32_t length : documents) {
    if (spec.losses.seq_aux > 0) add(first, length, spec.losses.seq_aux);
    first += length;
  }
  for (std::int64_t t = 0; t < kTokens; ++t) {
    double sum = 0;
    for (std::int64_t e = 0; e < kExperts; ++e) {
      sum += std::exp(logits[static_cast<std::size_t>(t * kExperts + e)]);
    }
    loss += spec.losses.z * std::log(sum) * std::log(sum);
  }
  return loss;
}

OpCase balance_case(std::string name, RouterScore score, double aux, double z) {
  OpCase test = route_case(std::move(name), {});
  test.documents = {static_cast<std::int32_t>(kTokens)};
  RouterSpec spec;
  spec.rule = {.topk = 3, .score = score};
  spec.losses = {aux, aux / 2, aux / 3, z};
  test.build = [spec, documents = test.documents](Bench& bench, const std::vector<Var>& in) {
    bench.set_loss_factor(0.7);
    Var logits = router_logits(bench.ctx, in[0], *bench.params[0], bench.params[1].get());
    Routing routing = route(bench.ctx, logits, spec, &bench.layout);
    double objective = 0;
    for (double prob : bench.values(routing.probs.tensor)) objective += prob;
    objective +=
        0.7 * balance_loss(bench.values(logits.tensor),
                           bench.ctx.download<std::int32_t>(routing.experts), spec, documents);
    return OpOutputs{{routing.probs}, objective};
  };
  return test;
}

// An expert bias changes the choice but not what the losses count.
TEST(Route, LossesCountWhatTheScoresChoose) {
  auto gradient = [](double bias, double coefficient) {
    Bench bench(Dtype::kF64);
    bench.set_loss_factor(0.7);
    Tape tape;
    bench.ctx.tape = &tape;
    Placement placement = batch_placement();
    Var logits = tape.track(bench.tensor({kTokens, kExperts}, case_numbers(kTokens * kExperts, 3)),
                            placement);
    std::vector<double> biases(kExperts);
    biases[5] = bias;
    Param& param = bench.param("bias", {kExperts}, {}, biases);
    param.trains = false;
    RouterSpec spec;
    spec.rule = {.topk = 3, .score = RouterScore::kSigmoid};
    spec.expert_bias = &param;
    spec.losses.aux = coefficient;
    Routing routing = route(bench.ctx, logits, spec, nullptr);
    std::vector<std::int32_t> experts = bench.ctx.download<std::int32_t>(routing.experts);
    for (std::int64_t t = 0; bias > 0 && t < kTokens; ++t) {
      EXPECT_EQ(experts[static_cast<std::size_t>(3 * t)], 5);
    }
    tape.add_gradient(bench.ctx, GradSlot(routing.probs),
                      bench.tensor({kTokens, 3}, std::vector<double>(3 * kTokens)),
                      placement.dual());
    tape.backward(bench.ctx);
    return values_of(tape.take_gradient(GradSlot(logits).id));
  };
  EXPECT_EQ(gradient(0, 0.3), gradient(9, 0.3));
  EXPECT_NE(gradient(0, 0.3), gradient(0, 0.4));
}

const OpRows kBalanceRows("Route",
                          {balance_case("aux loss", RouterScore::kSoftmax, 0.3, 0),
                           balance_case("aux loss of sigmoids", RouterScore::kSigmoid, 0.3, 0),
                           balance_case("z loss", RouterScore::kSoftmax, 0, 0.1)});

TEST(Route, TheGradientOfAnExpertsBiasIsItsLoadAboveTheMean) {
  Bench bench(Dtype::kF64);
  Tape tape;
  bench.ctx.tape = &tape;
  Param& bias = bench.param("bias", {4}, {}, {0, 0, 0, 0});
  Placement placement = batch_placement();
  Var logits = tape.track(bench.tensor({3, 4}, {9, 1, 0, 0, 9, 0, 1, 0, 9, 1, 0, 0}), placement);
  RouterSpec spec;
  spec.rule = {.topk = 2, .score = RouterScore::kSigmoid};
  spec.expert_bias = &bias;
  Routing routing = route(bench.ctx, logits, spec, nullptr);
  Tensor ones = bench.tensor({3, 2}, std::vector<double>(6, 1.0));
  tape.add_gradient(bench.ctx, GradSlot(routing.probs), ones, placement.dual());
  tape.backward(bench.ctx);
  // Loads 3, 2, 1, 0 of 6 choices, times the 4 experts.
  EXPECT_EQ(bench.store.gradient(bias), (std::vector<double>{6, 2, -2, -6}));
}

constexpr ActivationSpec kGatedSilu = {Activation::kSilu, true};

// Tokens through experts choices[2 t] and choices[2 t + 1], with router probabilities.
OpCase experts_case(std::string name, std::vector<std::int32_t> choices, std::int64_t experts,
                    bool bias, const ActivationSpec& spec = kGatedSilu) {
  auto tokens = static_cast<std::int64_t>(choices.size() / 2);
  const std::int64_t width = spec.gated ? 8 : 4;
  Split column = spec.gated ? Split{Axis::kEtp, 1, {4, 4}} : Split{Axis::kEtp, 1, {}};
  Split row{Axis::kEtp, 2, {}};
  OpCase test{std::move(name),
              {{{tokens, 3}}},
              {{{experts, width, 3}, column}, {{experts, 5, 4}, row}, {{4, 3}}}};
  test.documents = {static_cast<std::int32_t>(tokens)};
  if (bias) test.params.push_back({{experts, width}, column});
  test.build = [choices, experts, tokens, bias, spec](Bench& bench, const std::vector<Var>& in) {
    Context& ctx = bench.ctx;
    const Param* fc1_bias = bias ? bench.params[3].get() : nullptr;
    Tensor chosen = bench.integers(choices).reshape({tokens, 2});
    ExpertRows rows = sort_rows(ctx, chosen, 0, experts);
    Var logits = router_logits(ctx, in[0], *bench.params[2], nullptr);
    DispatchRef dispatch =
        plan_dispatch(ctx, ExpertParallel{}, chosen, experts, in[0].placement, bench.layout);
    Var probs = dispatch_tokens(ctx, route(ctx, logits, {}, nullptr).probs, dispatch);
    Var x = permute(ctx, dispatch_tokens(ctx, in[0], dispatch), rows);
    Var up = grouped_linear(ctx, x, rows, *bench.params[0], fc1_bias);
    Var inner = weighted_activation(ctx, up, spec, probs, rows);
    Var down = grouped_linear(ctx, inner, rows, *bench.params[1], nullptr);
    return OpOutputs{{combine_tokens(ctx, unpermute(ctx, down, rows), in[0].placement, dispatch)}};
  };
  return test;
}

OpCase expert_biases_case() {
  OpCase test{"biases of the chosen", {{{5, 3}}}, {{{4, 3}}, {{4, 3}}}};
  test.build = [](Bench& bench, const std::vector<Var>& in) {
    Context& ctx = bench.ctx;
    Routing routing = route(ctx, router_logits(ctx, in[0], *bench.params[0], nullptr), {}, nullptr);
    return OpOutputs{{add_expert_biases(ctx, add(ctx, in[0], in[0]), routing, *bench.params[1])}};
  };
  return test;
}

const OpRows kExpertRows(
    "Experts",
    {experts_case("an expert without tokens", {0, 3, 3, 1, 1, 0, 3, 0, 1, 3}, 4, false),
     experts_case("all tokens to two", {2, 1, 2, 1, 2, 1, 2, 1}, 3, true),
     experts_case("more experts than tokens", {7, 2, 0, 8}, 9, true), expert_biases_case()});

constexpr Activation kKinds[] = {Activation::kGelu,        Activation::kGeluTanh,
                                 Activation::kSilu,        Activation::kRelu,
                                 Activation::kSquaredRelu, Activation::kQuickGelu};
const std::vector<std::int32_t> kChoices = {0, 3, 3, 1, 1, 0, 3, 0, 1, 3};

// Rows of tokens, of which some choices have no expert here.
OpCase weighted_case(const ActivationSpec& spec, bool at_once, std::int64_t columns = 6) {
  OpCase test{
      concat("weighted activation ", static_cast<int>(spec.kind), " ", spec.gated, " ", columns),
      {{{4, columns}}, {.shape = {3, 2}, .wide = true}},
      {}};
  test.build = [spec, at_once](Bench& bench, const std::vector<Var>& in) {
    Context& ctx = bench.ctx;
    ExpertRows rows = sort_rows(ctx, bench.integers({0, 2, 1, 0, 2, 1}).reshape({3, 2}), 0, 2);
    rows.keep(4);
    if (at_once) return OpOutputs{{weighted_activation(ctx, in[0], spec, in[1], rows)}};
    return OpOutputs{{scale_by_probs(ctx, activation(ctx, in[0], spec), in[1], rows)}};
  };
  return test;
}

std::vector<OpCase> weighted_rows() {
  std::vector<OpCase> rows;
  for (Activation kind : kKinds) {
    for (bool gated : {false, true}) {
      rows.push_back(experts_case(concat("kind ", static_cast<int>(kind), gated ? ", gated" : ""),
                                  kChoices, 4, false, {kind, gated}));
      const ActivationSpec spec{kind, gated, false, gated ? GateLimits{0.7, 1} : GateLimits{}};
      for (std::int64_t columns : {1, 8, 77, 768}) {
        rows.push_back(weighted_case(spec, true, gated ? 2 * columns : columns));
      }
    }
  }
  rows.push_back(experts_case("limited", kChoices, 4, true,
                              {Activation::kQuickGelu, true, false, GateLimits{0.7, 1}}));
  return rows;
}
const OpRows kWeightedRows("WeightedActivation", weighted_rows());

TEST(WeightedActivation, IsTheActivationAndThenTheWeight) {
  for (bool gated : {false, true}) {
    ActivationSpec spec{Activation::kGelu, gated, false, gated ? GateLimits{0.7, 1} : GateLimits{}};
    OpCase one = weighted_case(spec, true), two = weighted_case(spec, false);
    OpValues values = values_for(one);
    OpResult got = run_op(one, values, {}), expected = run_op(two, values, {});
    EXPECT_LT(relative_error(got.outputs[0], expected.outputs[0]), 1e-15);
    EXPECT_LT(relative_error(got.input_grads[0], expected.input_grads[0]), 1e-15);
    EXPECT_LT(relative_error(got.input_grads[1], expected.input_grads[1]), 1e-15);
  }
}

// Rows without a token give zeros whatever they contain, and no gradient.
TEST(WeightedActivation, LeavesRowsWithoutATokenOut) {
  Bench bench(Dtype::kF64);
  Context& ctx = bench.ctx;
  const double nan = std::nan("");
  ExpertRows rows = sort_rows(ctx, bench.integers({0, 5}).reshape({1, 2}), 0, 1);
  Tape tape;
  ctx.tape = &tape;
  Var x = tape.track(bench.tensor({2, 2}, {0.5, 2, nan, nan}), batch_placement());
  Var probs = tape.track(bench.tensor({1, 2}, {0.25, nan}), batch_placement());
  Var y = weighted_activation(ctx, x, {Activation::kRelu, true}, probs, rows);
  EXPECT_EQ(values_of(y.tensor), (std::vector<double>{0.25, 0}));
  tape.add_gradient(ctx, GradSlot(y), bench.tensor({2, 1}, {2, nan}), y.placement.dual());
  tape.backward(ctx);
  EXPECT_EQ(values_of(tape.take_gradient(x.id)), (std::vector<double>{1, 0.25, 0, 0}));
  EXPECT_EQ(values_of(tape.take_gradient(probs.id)), (std::vector<double>{2, 0}));
  ctx.tape = nullptr;
}

TEST(WeightedActivation, RegeneratedResultGivesTheSameBits) {
  for (bool gated : {false, true}) {
    expect_same_bits(
        experts_case("kept", kChoices, 4, true, {Activation::kSilu, gated, false}),
        experts_case("made again", kChoices, 4, true, {Activation::kSilu, gated, true}));
  }
}

}  // namespace
}  // namespace bev::test
