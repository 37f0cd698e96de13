// Causal convolution, gated norms, the SSD recurrence of Mamba-2, and moves of columns.
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "kernels/recurrent.h"
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
const OpRows kConvRows("CausalConv",
                       {conv_case(3, 4, true, true), conv_case(5, 4, false, true),
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
const OpRows kGatedNormRows(
    "GatedNorm", {gated_norm_case({"whole width, gate first", 6, 6, 6, true, 0}),
                  gated_norm_case({"groups, gate first", 6, 3, 6, true, 0}),
                  gated_norm_case({"groups, gate after", 6, 2, 6, false, 1}),
                  gated_norm_case({"heads, gate after", 6, 3, 3, false, 0}),
                  gated_norm_case({"the gate alone", 5, 0, 0, true, 0}),
                  gated_norm_case({"whole width, gate first", 200, 200, 200, true, 0}, 70),
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
  OpCase test{
      concat(heads.heads, " heads of ", heads.size, ", state ", heads.state, ", groups ",
             heads.groups, ", chunk ", chunk, ", ", documents.size(), " documents, ", tokens,
             " tokens"),
      {{{tokens, heads.heads * heads.size + 2 * heads.groups * heads.state}},
       {{tokens, heads.heads}}},
      {{{heads.heads}}, {{heads.heads}}, {{heads.heads}}}};
  test.build = [heads, chunk](Bench& bench, const std::vector<Var>& in) {
    for (int i = 0; i < 3; ++i) bench.params[static_cast<std::size_t>(i)]->format = ParamFormat::kF32;
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

}  // namespace
}  // namespace bev::test
