// Causal convolution, gated norms, the SSD recurrence of Mamba-2, and moves of columns.
#include "kernels/recurrent.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/ssd.h"
#include "ops/recurrent/causal_conv.h"
#include "ops/recurrent/columns.h"
#include "ops/recurrent/gated_norm.h"
#include "ops/recurrent/ssd.h"
#include "tests/support/op_checks.h"

namespace bev::test {
namespace {

constexpr PlaceState kCut = PlaceState::kShard1;

// Packed documents, some shorter than the convolution is wide.
const std::vector<std::int32_t> kDocuments = {5, 1, 9, 2, 3};
constexpr std::int64_t kTokens = 20;

OpCase conv_case(std::int64_t channels, std::int64_t width, bool bias, bool silu,
                 std::vector<std::int32_t> documents = kDocuments, std::int64_t tokens = kTokens) {
  OpCase test{concat(channels, " channels, width ", width, bias ? ", bias" : "",
                     silu ? ", silu" : "", ", ", tokens, " tokens"),
              {{{tokens, channels}}},
              {{{channels, 1, width}}}};
  if (bias) test.params.push_back({{channels}});
  test.build = [bias, silu](Bench& bench, const std::vector<Var>& in) {
    const CausalConvSpec spec{.weight = bench.params[0].get(),
                              .bias = bias ? bench.params[1].get() : nullptr,
                              .silu = silu};
    return OpOutputs{{causal_conv(bench.ctx, in[0], spec, {&bench.layout}, 0)}};
  };
  test.documents = std::move(documents);
  test.cpu_only = true;
  return test;
}
const OpRows kConvRows("CausalConv", {conv_case(3, 4, true, true), conv_case(5, 4, false, true),
                                      conv_case(2, 4, true, false), conv_case(3, 1, true, true),
                                      conv_case(3, 2, false, false), conv_case(2, 7, true, true),
                                      conv_case(70, 4, true, true, {90}, 90),
                                      conv_case(130, 3, false, true, {1, 2, 130}, 133)});

// Direct sums.
TEST(CausalConv, SeesTheTokensBeforeItInItsDocument) {
  OpCase test = conv_case(2, 3, true, false);
  OpValues values = values_for(test);
  OpResult result = run_op(test, values, {.backward = false});
  const std::vector<double>&x = values.inputs[0], &w = values.params[0], &b = values.params[1];
  std::size_t row = 0;
  for (std::int32_t length : kDocuments) {
    for (std::int32_t t = 0; t < length; ++t, ++row) {
      for (std::size_t c = 0; c < 2; ++c) {
        double sum = b[c];
        for (std::int32_t j = 0; j < 3; ++j) {
          const std::int32_t from = t - 2 + j;
          if (from < 0) continue;
          const std::size_t at = row - static_cast<std::size_t>(t - from);
          sum += w[c * 3 + static_cast<std::size_t>(j)] * x[at * 2 + c];
        }
        EXPECT_NEAR(result.outputs[0][row * 2 + c], sum, 1e-14);
      }
    }
  }
}

struct NormKind {
  const char* name;
  std::int64_t columns, group, weights;  // weights 0: the gate alone
  bool gate_first;
  double offset;
};

OpCase gated_norm_case(const NormKind& kind, std::int64_t tokens = 4) {
  OpCase test{concat(kind.name, " ", tokens, " x ", kind.columns),
              {{{tokens, kind.columns}}, {{tokens, kind.columns}}},
              {}};
  if (kind.weights > 0) test.params.push_back({{kind.weights}});
  test.build = [kind](Bench& bench, const std::vector<Var>& in) {
    const GatedNormSpec spec{.weight = kind.weights > 0 ? bench.params[0].get() : nullptr,
                             .group_width = kind.group,
                             .gate_first = kind.gate_first,
                             .epsilon = 1e-5,
                             .offset = kind.offset};
    return OpOutputs{{gated_norm(bench.ctx, in[0], in[1], spec)}};
  };
  test.cpu_only = true;
  return test;
}
const OpRows kGatedNormRows("GatedNorm",
                            {gated_norm_case({"whole width, gate first", 6, 6, 6, true, 0}),
                             gated_norm_case({"groups, gate first", 6, 3, 6, true, 0}),
                             gated_norm_case({"groups, gate after", 6, 2, 6, false, 1}),
                             gated_norm_case({"heads, gate after", 6, 3, 3, false, 0}),
                             gated_norm_case({"the gate alone", 5, 0, 0, true, 0}),
                             gated_norm_case({"whole width, gate first", 200, 200, 200, true, 0},
                                             70),
                             gated_norm_case({"heads, gate after", 192, 64, 64, false, 0}, 130)});

struct Heads {
  std::int64_t heads, size, state, groups;
};

SsdSpec ssd_spec(const Bench& bench, const Heads& heads, std::int64_t chunk) {
  SsdSpec spec{bench.params[0].get(), bench.params[1].get(), bench.params[2].get(), {}};
  spec.shape.chunk = chunk;
  spec.shape.heads = heads.heads;
  spec.shape.head_size = heads.size;
  spec.shape.state_size = heads.state;
  spec.shape.groups = heads.groups;
  spec.shape.heads_per_group = heads.heads / heads.groups;
  return spec;
}

std::int64_t sum_of(const std::vector<std::int32_t>& lengths) {
  std::int64_t sum = 0;
  for (std::int32_t length : lengths) sum += length;
  return sum;
}

OpCase ssd_case(const Heads& heads, std::int64_t chunk,
                const std::vector<std::int32_t>& documents) {
  const std::int64_t tokens = sum_of(documents);
  OpCase test{concat(heads.heads, " heads of ", heads.size, ", state ", heads.state, ", groups ",
                     heads.groups, ", chunk ", chunk, ", ", documents.size(), " documents, ",
                     tokens, " tokens"),
              {{{tokens, heads.heads * heads.size + 2 * heads.groups * heads.state}},
               {{tokens, heads.heads}}},
              std::vector<OpParam>(3, {.shape = {heads.heads}, .wide = true})};
  test.build = [heads, chunk](Bench& bench, const std::vector<Var>& in) {
    return OpOutputs{
        {ssd(bench.ctx, in[0], in[1], ssd_spec(bench, heads, chunk), {&bench.layout}, 0)}};
  };
  test.documents = documents;
  test.cpu_only = true;
  return test;
}
const OpRows kSsdRows("Ssd", {ssd_case({2, 3, 4, 1}, 4, kDocuments),
                              ssd_case({4, 2, 3, 2}, 16, kDocuments),
                              ssd_case({3, 1, 2, 3}, 1, {7}), ssd_case({2, 5, 1, 2}, 3, {1, 1, 1}),
                              ssd_case({2, 33, 18, 1}, 64, {70, 3})});

// A head's recurrence token by token, in f64.
std::vector<double> scan_tokens(const Heads& h, const OpValues& values,
                                const std::vector<std::int32_t>& documents) {
  const auto heads = static_cast<std::size_t>(h.heads), p = static_cast<std::size_t>(h.size);
  const auto n = static_cast<std::size_t>(h.state), groups = static_cast<std::size_t>(h.groups);
  const std::size_t columns = heads * p + 2 * groups * n;
  const std::vector<double>&rows = values.inputs[0], &raw = values.inputs[1];
  std::vector<double> y;
  std::size_t row = 0;
  for (std::int32_t length : documents) {
    std::vector<double> state(heads * p * n, 0.0);
    for (std::int32_t t = 0; t < length; ++t, ++row) {
      const double* x = rows.data() + row * columns;
      for (std::size_t head = 0; head < heads; ++head) {
        const double* b = x + heads * p + head / (heads / groups) * n;
        const double dt = std::log1p(std::exp(raw[row * heads + head] + values.params[0][head]));
        const double decay = std::exp(-dt * std::exp(values.params[1][head]));
        for (std::size_t i = 0; i < p; ++i) {
          double sum = values.params[2][head] * x[head * p + i];
          for (std::size_t k = 0; k < n; ++k) {
            double& s = state[(head * p + i) * n + k];
            s = decay * s + dt * x[head * p + i] * b[k];
            sum += s * b[groups * n + k];
          }
          y.push_back(sum);
        }
      }
    }
  }
  return y;
}

TEST(Ssd, ChunksOfAnySizeAreTheRecurrence) {
  for (std::int32_t tokens : {1, 2, 3, 5, 63, 64, 65, 200}) {
    for (std::int64_t chunk : {1, 7, 16, 64, 128}) {
      for (std::int64_t groups : {1, 2, 4}) {
        const Heads heads{4, 3, 5, groups};
        const std::vector<std::int32_t> documents = {tokens, 1, 2};
        const OpCase test = ssd_case(heads, chunk, documents);
        SCOPED_TRACE(test.name);
        const OpValues values = values_for(test);
        const OpResult result = run_op(test, values, {.backward = false});
        EXPECT_LT(relative_error(result.outputs[0], scan_tokens(heads, values, documents)), 1e-12);
      }
    }
  }
}

// Documents packed together have the outputs and gradients of documents apart.
TEST(Ssd, DocumentsDoNotSeeEachOther) {
  const Heads heads{2, 3, 4, 1};
  const OpCase whole = ssd_case(heads, 4, {3, 6});
  OpValues values = values_for(whole);
  const OpResult both = run_op(whole, values, {.backward = false});
  for (double& x : values.inputs[0]) x = (&x - values.inputs[0].data()) < 3 * 14 ? 9 : x;
  const OpResult other = run_op(whole, values, {.backward = false});
  EXPECT_NE(both.outputs[0].front(), other.outputs[0].front());
  const auto second = both.outputs[0].begin() + 3 * 6;
  EXPECT_TRUE(std::equal(second, both.outputs[0].end(), other.outputs[0].begin() + 3 * 6));
}

// Large and small steps and decays: all finite, and f32 follows f64.
TEST(Ssd, StaysFiniteForAnyStepsAndDecays) {
  const Heads heads{3, 4, 6, 1};
  OpCase test = ssd_case(heads, 64, {150});
  OpValues values = values_for(test);
  const double steps[] = {-60, 60, 0, 25, -20, 3};
  for (std::size_t i = 0; i < values.inputs[1].size(); ++i) values.inputs[1][i] = steps[i % 6];
  values.params[1] = {5, -8, 2.7};
  const OpResult exact = run_op(test, values, {});
  auto finite = [](const std::vector<double>& list) {
    return std::ranges::all_of(list, [](double x) { return std::isfinite(x); });
  };
  for (Dtype dtype : {Dtype::kF64, Dtype::kF32, Dtype::kBf16}) {
    const OpResult result = run_op(test, values, {.dtype = dtype});
    EXPECT_TRUE(finite(result.outputs[0]));
    for (const auto& gradient : result.input_grads) EXPECT_TRUE(finite(gradient));
    for (const auto& gradient : result.param_grads) EXPECT_TRUE(finite(gradient));
    if (dtype == Dtype::kF32) {
      EXPECT_LT(relative_error(result.outputs[0], exact.outputs[0]), 1e-5);
    }
  }
}

TEST(Ssd, StepsStayWithinTheirLimits) {
  OpCase test = ssd_case({2, 3, 4, 1}, 4, {6});
  test.build = [](Bench& bench, const std::vector<Var>& in) {
    SsdSpec spec = ssd_spec(bench, {2, 3, 4, 1}, 4);
    spec.shape.dt_min = 0.7;
    spec.shape.dt_max = 0.7;
    return OpOutputs{{ssd(bench.ctx, in[0], in[1], spec, {&bench.layout}, 0)}};
  };
  OpValues values = values_for(test);
  const OpResult result = run_op(test, values, {});
  for (double d : result.input_grads[1]) EXPECT_EQ(d, 0);
  values.inputs[1].assign(values.inputs[1].size(), std::log(std::expm1(0.7)));
  values.params[0] = {0, 0};
  EXPECT_LT(relative_error(result.outputs[0], scan_tokens({2, 3, 4, 1}, values, {6})), 1e-12);
}

// The outputs of a decoder: prompts in pieces, then token by token, sequences in slots.
TEST(Ssd, DecodingIsTheWholeForward) {
  const Heads heads{4, 3, 5, 2};
  const std::vector<std::int32_t> documents = {40, 9};
  const OpCase test = ssd_case(heads, 8, documents);
  const OpValues values = values_for(test);
  const std::vector<double> whole = run_op(test, values, {.backward = false}).outputs[0];
  Bench bench(Dtype::kF64);
  fill_bench(test, values, {}, bench);
  const SsdSpec spec = ssd_spec(bench, heads, 8);
  const std::int64_t elements = spec.shape.state_elements(), columns = spec.shape.columns();
  Tensor states = bench.tensor(
      {3, elements + 2}, std::vector<double>(static_cast<std::size_t>(3 * (elements + 2)), 7.0));
  std::vector<double> got(whole.size());
  std::int64_t done[2] = {0, 0};
  const std::int64_t begin[2] = {0, 40}, slots[2] = {2, 0};
  for (std::int64_t count : {21, 1, 3, 14, 1}) {
    DecodeStep step;
    std::vector<double> rows, dt;
    std::vector<std::int64_t> places;
    std::int64_t at = 0;
    for (std::size_t i = 0; i < 2; ++i) {
      const std::int64_t take = std::min<std::int64_t>(count, documents[i] - done[i]);
      if (take == 0) continue;
      step.runs.push_back({.q_begin = static_cast<std::int32_t>(at),
                           .q_count = static_cast<std::int32_t>(take),
                           .offset = static_cast<std::int32_t>(done[i])});
      step.slots.push_back(slots[i]);
      for (std::int64_t t = 0; t < take; ++t) places.push_back(begin[i] + done[i] + t);
      done[i] += take;
      at += take;
    }
    for (std::int64_t place : places) {
      auto x = values.inputs[0].begin() + place * columns;
      auto raw = values.inputs[1].begin() + place * heads.heads;
      rows.insert(rows.end(), x, x + columns);
      dt.insert(dt.end(), raw, raw + heads.heads);
    }
    Var y = ssd(bench.ctx, {bench.tensor({at, columns}, rows), {}, -1, nullptr},
                {bench.tensor({at, heads.heads}, dt), {}, -1, nullptr}, spec,
                {&bench.layout, &step, states}, 2);
    const std::vector<double> out = values_of(y.tensor);
    for (std::size_t i = 0; i < places.size(); ++i) {
      std::copy_n(out.begin() + static_cast<std::ptrdiff_t>(i) * 12, 12,
                  got.begin() + places[i] * 12);
    }
  }
  EXPECT_LT(relative_error(got, whole), 1e-12);
}

OpCase columns_case() {
  OpCase test{"split and scaled", {{{3, 7}, kCut}}, {}};
  test.build = [](Bench& bench, const std::vector<Var>& in) {
    const std::array<std::int64_t, 3> columns = {2, 4, 1};
    const std::array<double, 3> factors = {1, -2, 0.5};
    Var scaled_parts = scale_column_parts(bench.ctx, in[0], columns, factors);
    std::vector<Var> parts = split_columns(bench.ctx, scaled_parts, columns);
    return OpOutputs{{parts[0], parts[2]}};
  };
  return test;
}
const OpRows kColumnRows("Columns", {columns_case()});

}  // namespace
}  // namespace bev::test
