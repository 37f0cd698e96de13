// Gated delta rule: gradients, chunks of any size against the recurrence token by token, packed
// documents, states, context parallelism, hostile numbers.
#include "ops/recurrent/delta_rule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "kernels/delta_rule.h"
#include "tests/support/op_checks.h"

namespace bev::test {
namespace {

using Numbers = std::vector<double>;
constexpr PlaceState kWhole = PlaceState::kReplicated;

struct Heads {
  std::int64_t keys, values, key_size, value_size;

  std::int64_t columns() const { return 2 * keys * key_size + values * value_size; }
  std::int64_t state_size() const { return values * key_size * value_size; }
  DeltaRuleSpec spec(std::int64_t chunk) const {
    return {.key_heads = keys,
            .value_heads = values,
            .key_size = key_size,
            .value_size = value_size,
            .chunk = chunk};
  }
};

std::int64_t total(const std::vector<std::int32_t>& lengths) {
  return std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
}

OpCase delta_case(std::string name, std::vector<std::int32_t> documents, Heads heads,
                  std::int64_t chunk) {
  std::int64_t tokens = total(documents);
  OpCase test{
      .name = std::move(name),
      .inputs = {{.shape = {tokens, heads.columns()}, .tp = kWhole},
                 {.shape = {tokens, heads.values}, .tp = kWhole, .scale = 0.4, .wide = true},
                 {.shape = {tokens, heads.values}, .tp = kWhole, .wide = true}},
      .params = {},
      .documents = std::move(documents),
      .cpu_only = true};
  for (OpInput& input : test.inputs) input.cp = PlaceState::kShard0;
  test.build = [heads, chunk](Bench& bench, const std::vector<Var>& in) {
    return OpOutputs{
        {delta_rule(bench.ctx, {in[0], in[1], in[2]}, {&bench.layout}, heads.spec(chunk))}};
  };
  return test;
}
const OpRows kDeltaRows("DeltaRule", {delta_case("one chunk", {7}, {1, 2, 4, 5}, 64),
                                      delta_case("chunks of one", {5}, {1, 1, 5, 3}, 1),
                                      delta_case("some chunks", {13}, {2, 2, 3, 4}, 4),
                                      delta_case("shared keys", {9}, {2, 4, 5, 4}, 3),
                                      delta_case("documents", {3, 1, 8}, {1, 2, 4, 6}, 3),
                                      delta_case("large", {150, 83}, {2, 4, 24, 40}, 64),
                                      delta_case("odd chunks", {101}, {2, 2, 20, 17}, 37)});

// Entering states of two rows, of which one run has none, and leaving ones.
OpCase states_case(std::string name, Heads heads, std::int64_t chunk) {
  const std::vector<RecurrentRun> runs = {{0, 5, 1, 0}, {5, 4, -1, 1}, {9, 3, 0, -1}};
  Shape states{2, heads.values, heads.key_size, heads.value_size};
  OpCase test{.name = std::move(name),
              .inputs = {{.shape = {12, heads.columns()}, .tp = kWhole},
                         {.shape = {12, heads.values}, .tp = kWhole, .scale = 0.4, .wide = true},
                         {.shape = {12, heads.values}, .tp = kWhole, .wide = true},
                         {.shape = states, .tp = kWhole, .wide = true}},
              .params = {},
              .cpu_only = true};
  test.build = [heads, chunk, runs](Bench& bench, const std::vector<Var>& in) {
    DeltaResult result =
        delta_rule_with_states(bench.ctx, {in[0], in[1], in[2]}, in[3], runs, heads.spec(chunk));
    return OpOutputs{{result.out, result.leaving}};
  };
  return test;
}
const OpRows kStateRows("DeltaRuleStates", {states_case("one chunk", {1, 2, 4, 5}, 16),
                                            states_case("chunks", {2, 2, 3, 4}, 2)});

OpCase gates_case(std::string name, std::int64_t tokens, std::int64_t heads) {
  OpCase test{.name = std::move(name),
              .inputs = {{.shape = {tokens, 2 * heads}, .tp = kWhole, .scale = 3}},
              .params = {{{heads}}, {{heads}}},
              .cpu_only = true};
  test.build = [](Bench& bench, const std::vector<Var>& in) {
    DeltaGates gates = delta_gates(bench.ctx, in[0], *bench.params[0], *bench.params[1]);
    return OpOutputs{{gates.g, gates.beta}};
  };
  return test;
}
const OpRows kGateRows("DeltaGates", {gates_case("one", 1, 1), gates_case("heads", 7, 5),
                                      gates_case("many", 300, 12)});

// Inputs of a call: rows, decays, strengths.
struct Call {
  Heads heads;
  std::int64_t tokens;
  Numbers qkv, g, beta;

  Call(Heads sizes, std::int64_t count, std::uint64_t key)
      : heads(sizes),
        tokens(count),
        qkv(case_numbers(count * sizes.columns(), key)),
        g(case_numbers(count * sizes.values, key + 1)),
        beta(case_numbers(count * sizes.values, key + 2, 0.9)) {
    for (double& x : g) x = -std::abs(x);
    for (double& x : beta) x = std::abs(x);
  }
};

struct Result {
  Numbers out, states;
};

// By the kernel for chunks, or token by token if chunk is 0.
Result compute(const Call& call, const std::vector<RecurrentRun>& runs, std::int64_t states,
               const Numbers& entering, std::int64_t chunk, Dtype dtype = Dtype::kF64,
               int threads = 1) {
  Bench bench(dtype, threads);
  const Heads& heads = call.heads;
  Tensor qkv = bench.tensor({call.tokens, heads.columns()}, call.qkv);
  Tensor g = bench.tensor({call.tokens, heads.values}, call.g, bench.ctx.wide());
  Tensor beta = bench.tensor({call.tokens, heads.values}, call.beta, bench.ctx.wide());
  Tensor out = bench.tensor(
      {call.tokens, heads.values * heads.value_size},
      Numbers(static_cast<std::size_t>(call.tokens * heads.values * heads.value_size)));
  // States lie between other columns.
  const std::int64_t width = heads.state_size() + 3;
  Numbers rows(static_cast<std::size_t>(states * width), 7.0);
  for (std::size_t i = 0; i < entering.size(); ++i) {
    const std::size_t size = static_cast<std::size_t>(heads.state_size());
    rows[i / size * static_cast<std::size_t>(width) + 2 + i % size] = entering[i];
  }
  Tensor memory = bench.tensor({states, width}, rows, bench.ctx.wide());
  DeltaShape shape{.runs = runs,
                   .key_heads = heads.keys,
                   .value_heads = heads.values,
                   .key_size = heads.key_size,
                   .value_size = heads.value_size,
                   .chunk = std::max<std::int64_t>(chunk, 1),
                   .scale = 1 / std::sqrt(static_cast<double>(heads.key_size))};
  const StateRows at{memory, 2};
  const DeltaRuleKernels& kernels = bench.ctx.kernels.delta_rule;
  if (chunk == 0) {
    kernels.step(bench.ctx.stream, {.shape = shape,
                                    .qkv = qkv,
                                    .g = g,
                                    .beta = beta,
                                    .entering = at,
                                    .out = out,
                                    .leaving = at});
  } else {
    kernels.forward(bench.ctx.stream, {.shape = shape,
                                       .qkv = qkv,
                                       .g = g,
                                       .beta = beta,
                                       .entering = at,
                                       .out = out,
                                       .leaving = at});
  }
  Result result{bench.values(out), {}};
  Numbers all = bench.values(memory);
  for (std::int64_t i = 0; i < states * width; ++i) {
    const std::int64_t column = i % width - 2;
    const double value = all[static_cast<std::size_t>(i)];
    if (column >= 0 && column < heads.state_size()) {
      result.states.push_back(value);
    } else {
      EXPECT_EQ(value, 7.0) << "beside the states";
    }
  }
  return result;
}

constexpr Heads kShapes[] = {{1, 1, 4, 4}, {1, 1, 5, 24},  {2, 2, 24, 5},
                             {1, 4, 4, 8}, {2, 4, 16, 16}, {3, 6, 20, 12}};

TEST(DeltaRule, ChunksOfAnySizeAreTheRecurrence) {
  for (std::int64_t tokens : {1, 2, 3, 5, 63, 64, 65, 200}) {
    for (const Heads& heads : kShapes) {
      const Call call(heads, tokens, static_cast<std::uint64_t>(tokens));
      const Numbers entering = case_numbers(heads.state_size(), 9);
      const std::vector<RecurrentRun> runs = {{0, tokens, 0, 0}};
      const Result want = compute(call, runs, 1, entering, 0);
      for (std::int64_t chunk : {1, 7, 16, 64, 128, 256}) {
        const Result got = compute(call, runs, 1, entering, chunk);
        EXPECT_LT(relative_error(got.out, want.out), 1e-12) << tokens << " by " << chunk;
        EXPECT_LT(relative_error(got.states, want.states), 1e-12) << tokens << " by " << chunk;
      }
    }
  }
}

TEST(DeltaRule, ChunksOfALongSequenceAreTheRecurrence) {
  const Call call({1, 2, 8, 8}, 1000, 5);
  const std::vector<RecurrentRun> runs = {{0, 1000, -1, 0}};
  const Result want = compute(call, runs, 1, {}, 0);
  for (std::int64_t chunk : {16, 64, 256}) {
    const Result got = compute(call, runs, 1, {}, chunk);
    EXPECT_LT(relative_error(got.out, want.out), 1e-12) << chunk;
    EXPECT_LT(relative_error(got.states, want.states), 1e-12) << chunk;
  }
}

// The definition, in plain loops.
TEST(DeltaRule, TheRecurrenceIsTheDefinition) {
  const Heads heads{2, 4, 3, 5};
  const Call call(heads, 6, 21);
  const Result got = compute(call, {{0, 6, -1, 0}}, 1, {}, 0);
  Numbers want;
  std::vector<Numbers> state(4, Numbers(15));
  for (std::size_t t = 0; t < 6; ++t) {
    for (std::size_t h = 0; h < 4; ++h) {
      const double* row = call.qkv.data() + t * 32;
      const double *q = row + h / 2 * 3, *k = q + 6, *v = row + 12 + h * 5;
      auto unit = [](const double* x, std::size_t i) {
        return x[i] / std::sqrt(x[0] * x[0] + x[1] * x[1] + x[2] * x[2] + 1e-6);
      };
      for (std::size_t j = 0; j < 5; ++j) {
        double read = 0, out = 0;
        for (std::size_t i = 0; i < 3; ++i) state[h][i * 5 + j] *= std::exp(call.g[t * 4 + h]);
        for (std::size_t i = 0; i < 3; ++i) read += state[h][i * 5 + j] * unit(k, i);
        const double u = call.beta[t * 4 + h] * (v[j] - read);
        for (std::size_t i = 0; i < 3; ++i) {
          state[h][i * 5 + j] += unit(k, i) * u;
          out += state[h][i * 5 + j] * unit(q, i) / std::sqrt(3.0);
        }
        want.push_back(out);
      }
    }
  }
  EXPECT_LT(relative_error(got.out, want), 1e-14);
}

TEST(DeltaRule, PackedDocumentsAreSeparateRuns) {
  const Heads heads{1, 2, 5, 4};
  std::vector<RecurrentRun> runs;
  std::int64_t tokens = 0;
  for (std::int64_t length = 1; length <= 20; ++length) {
    runs.push_back({tokens, length});
    tokens += length;
  }
  const Call call(heads, tokens, 31);
  const Result packed = compute(call, runs, 1, {}, 8);
  for (const RecurrentRun& run : runs) {
    const Result alone = compute(call, {run}, 1, {}, 8);
    const auto begin = static_cast<std::ptrdiff_t>(run.row * 8);
    const auto end = begin + static_cast<std::ptrdiff_t>(run.count * 8);
    EXPECT_EQ(Numbers(packed.out.begin() + begin, packed.out.begin() + end),
              Numbers(alone.out.begin() + begin, alone.out.begin() + end));
  }
}

// Decays, strengths and rows at the ends of their ranges.
Call hostile_call(double decay) {
  Call call({2, 4, 8, 8}, 130, 41);
  for (std::size_t i = 0; i < call.g.size(); ++i) {
    call.g[i] *= i % 3 == 0 ? decay : 1;
    call.beta[i] = i % 5 == 0 ? 0 : i % 5 == 1 ? 1 : call.beta[i];
  }
  const std::size_t columns = static_cast<std::size_t>(call.heads.columns());
  for (std::size_t t = 1; t < 130; ++t) {
    double* row = call.qkv.data() + t * columns;
    if (t % 7 == 0) std::fill_n(row + 16, 16, 0.0);
    if (t % 7 == 1) std::copy_n(row - columns + 16, 16, row + 16);
    if (t % 7 == 2) std::fill_n(row, 16, 0.0);
  }
  return call;
}

TEST(DeltaRule, HostileNumbersStayFiniteAndExact) {
  const std::vector<RecurrentRun> runs = {{0, 130, -1, 0}};
  for (double decay : {1.0, 50.0, 1e4, 1e30}) {
    const Call call = hostile_call(decay);
    const Result exact = compute(call, runs, 1, {}, 0);
    for (double x : exact.out) ASSERT_TRUE(std::isfinite(x)) << decay;
    EXPECT_LT(relative_error(compute(call, runs, 1, {}, 64).out, exact.out), 1e-11) << decay;
    EXPECT_LT(relative_error(compute(call, runs, 1, {}, 64, Dtype::kF32).out, exact.out), 1e-5)
        << decay;
    EXPECT_LT(relative_error(compute(call, runs, 1, {}, 0, Dtype::kF32).out, exact.out), 1e-5)
        << decay;
    for (double x : compute(call, runs, 1, {}, 64, Dtype::kBf16).out) {
      ASSERT_TRUE(std::isfinite(x)) << decay;
    }
  }
}

TEST(DeltaRule, GradientsOfHostileNumbersAreFinite) {
  const Call call = hostile_call(1e30);
  OpCase test = delta_case("hostile", {130}, call.heads, 64);
  for (Dtype dtype : {Dtype::kF32, Dtype::kBf16}) {
    const OpResult result = run_op(test, {{call.qkv, call.g, call.beta}, {}}, {.dtype = dtype});
    for (const Numbers& list : result.input_grads) {
      for (double x : list) ASSERT_TRUE(std::isfinite(x));
    }
  }
}

TEST(DeltaGates, StayFiniteAtTheEndsOfTheirRanges) {
  OpCase test = gates_case("hostile", 3, 4);
  OpValues values = values_for(test);
  values.inputs[0] = {-60, 60, 0, 30, -60, 60, 25, 0,  1e4, -1e4, 5,  -5,
                      -60, 60, 3, 8,  90,  90, 60, 60, -90, -90,  -1, 1};
  values.params = {{5, 5, -40, 200}, {1, -1, 0, 60}};
  for (Dtype dtype : {Dtype::kF64, Dtype::kF32, Dtype::kBf16}) {
    const OpResult result = run_op(test, values, {.dtype = dtype});
    for (const auto* lists : {&result.outputs, &result.input_grads, &result.param_grads}) {
      for (const Numbers& list : *lists) {
        for (double x : list) ASSERT_TRUE(std::isfinite(x)) << name_of(dtype);
      }
    }
  }
}

// Packed documents, a sample without tokens, and samples with fewer tokens than there are chunks.
const std::vector<SampleShape> kSamples = {{{9, 4}}, {{}}, {{23}}, {{1, 2, 1}}, {{1}}};
constexpr std::int64_t kTokens = 41;

// Numbers of the tokens of a rank, given those of all samples.
Numbers part_of(const TokenSet& tokens, const Numbers& all) {
  const std::int64_t begins[] = {0, 13, 13, 36, 40};
  const std::int64_t columns = static_cast<std::int64_t>(all.size()) / kTokens;
  Numbers rows;
  for (const DocumentPiece& piece : tokens.pieces()) {
    auto first = all.begin() + columns * (begins[piece.sample] + piece.sample_begin);
    rows.insert(rows.end(), first, first + columns * piece.count);
  }
  return rows;
}

struct Trained {
  Numbers out, dqkv, dg, dbeta;
};

// Result and gradients of a rank for its part of the numbers.
Trained train(Bench& bench, const Call& call, const Numbers& dout) {
  SequenceLayout layout = SequenceLayout::make(bench.ctx, kSamples, 0);
  Tape tape;
  bench.ctx.tape = &tape;
  auto track = [&](const Numbers& all, Dtype dtype) {
    const std::int64_t columns = static_cast<std::int64_t>(all.size()) / kTokens;
    return tape.track(bench.tensor({layout.tokens, columns}, part_of(layout.own, all), dtype),
                      batch_placement());
  };
  Var qkv = track(call.qkv, bench.ctx.dtype), g = track(call.g, bench.ctx.wide()),
      beta = track(call.beta, bench.ctx.wide());
  Var out = delta_rule(bench.ctx, {qkv, g, beta}, {&layout}, call.heads.spec(4));
  Trained result{values_of(out.tensor), {}, {}, {}};
  tape.add_gradient(bench.ctx, GradSlot(out), bench.tensor(out.shape(), part_of(layout.own, dout)),
                    batch_placement());
  tape.backward(bench.ctx);
  result.dqkv = values_of(tape.take_gradient(qkv.id));
  result.dg = values_of(tape.take_gradient(g.id));
  result.dbeta = values_of(tape.take_gradient(beta.id));
  return result;
}

TEST(DeltaRule, RanksThatShareSequencesHaveTheResultOfOne) {
  const Call call({2, 4, 3, 5}, kTokens, 51);
  const Numbers dout = case_numbers(kTokens * 20, 52);
  Bench alone(Dtype::kF64);
  const Trained want = train(alone, call, dout);
  for (int ranks : {2, 3, 4}) {
    run_thread_ranks(ranks, {20.0}, [&](World& world) {
      Bench bench(world, {.cp = ranks}, Dtype::kF64);
      const Trained got = train(bench, call, dout);
      SequenceLayout layout = SequenceLayout::make(bench.ctx, kSamples, 0);
      EXPECT_LT(relative_error(got.out, part_of(layout.own, want.out)), 1e-13) << ranks;
      EXPECT_LT(relative_error(got.dqkv, part_of(layout.own, want.dqkv)), 1e-13) << ranks;
      EXPECT_LT(relative_error(got.dg, part_of(layout.own, want.dg)), 1e-13) << ranks;
      EXPECT_LT(relative_error(got.dbeta, part_of(layout.own, want.dbeta)), 1e-13) << ranks;
    });
  }
}

}  // namespace
}  // namespace bev::test
