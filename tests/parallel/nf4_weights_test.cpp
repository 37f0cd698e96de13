#include "parallel/store/nf4_weights.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "backend/cpu/cpu_kernels.h"
#include "base/thread_pool.h"
#include "kernels/quantize.h"

namespace bev {
namespace {

struct Quantized4 {
  std::vector<std::uint8_t> codes;
  Nf4Scales scales;
};

Quantized4 quantize(std::int64_t count, const Nf4Format& format, double seed) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < count; ++i) {
    values.push_back(static_cast<float>(std::sin(seed * static_cast<double>(i * i % 1009)) *
                                        static_cast<double>(1 + i / 50)));
  }
  Quantized4 out{std::vector<std::uint8_t>(static_cast<std::size_t>(nf4_code_bytes(count))), {}};
  std::vector<float> absmax(static_cast<std::size_t>(ceil_div(count, format.block)));
  EXPECT_EQ(quantize_nf4(values, format.block, out.codes, absmax), -1);
  out.scales = make_nf4_scales(absmax, format);
  return out;
}

struct Part {
  const char* name;
  Shape shape;
  Split split;
  std::int64_t parts, expert_parts = 1;
};

const std::vector<Part> kParts = {
    {"whole, odd", {7, 9}, {}, 1},
    {"rows", {24, 64}, {Axis::kTp, 0, {}}, 2},
    {"rows of segments, uneven", {23, 40}, {Axis::kTp, 0, {11, 7, 5}}, 3},
    {"columns that begin within blocks", {9, 96}, {Axis::kTp, 1, {}}, 2},
    {"odd columns", {5, 33}, {Axis::kTp, 1, {}}, 2},
    {"large columns", {40, 1024}, {Axis::kTp, 1, {}}, 2},
    {"experts", {4, 6, 64}, {Axis::kEtp, 1, {}}, 2, 2},
    {"experts' columns", {3, 5, 48}, {Axis::kEtp, 2, {}}, 2, 3},
};

// Values of a part of a parameter that consists of two tensors, against those of the tensors.
void compare(const Part& wanted, const Nf4Format& format, std::int64_t index,
             std::int64_t expert_index) {
  Param param;
  param.name = "weight";
  param.shape = wanted.shape;
  param.split = wanted.split;
  param.format = ParamFormat::kNf4;
  param.nf4 = format;
  std::int64_t row = param.shape[param.shape.ndim() - 1], all = param.shape.numel();
  std::int64_t first = all / row / 3 * row;  // elements of the first tensor: whole rows
  Quantized4 one = quantize(first, format, 0.7), two = quantize(all - first, format, 1.3);
  ParamPart part{wanted.parts, index, wanted.expert_parts, expert_index};
  Nf4Part kept(param, part);
  kept.add({one.codes, &one.scales, 0, 0, first});
  kept.add({two.codes, &two.scales, 0, first, all - first});

  Nf4Layout layout = nf4_layout(param, part);
  ASSERT_EQ(layout.bytes(), static_cast<std::int64_t>(kept.bytes().size()));
  ASSERT_EQ(layout.elements, param.split.local_shape(param.shape, part).numel());
  ThreadPool pool(2);
  std::vector<Bf16> local(static_cast<std::size_t>(layout.elements));
  Nf4View view{kept.bytes().data(), layout, format.dtype};
  cpu_kernels().quantize.dequantize_nf4(Stream{&pool, nullptr}, view,
                                        {local.data(), Dtype::kBf16, {layout.elements}});
  std::vector<float> whole(static_cast<std::size_t>(all));
  dequantize_nf4(one.codes, one.scales, format.dtype, 0, first, whole.data());
  dequantize_nf4(two.codes, two.scales, format.dtype, 0, all - first, whole.data() + first);
  for (const ElementRun& run : element_runs(param.shape, param.split, part)) {
    for (std::int64_t i = 0; i < run.count; ++i) {
      float value = whole[static_cast<std::size_t>(run.global + i)];
      ASSERT_EQ(local[static_cast<std::size_t>(run.local + i)].bits, Bf16(value).bits)
          << wanted.name << " " << run.global + i;
    }
  }
}

TEST(Nf4Weights, APartHasTheValuesOfTheWholeTensors) {
  for (const Part& part : kParts) {
    for (Nf4Format format : {Nf4Format{64, false}, Nf4Format{32, true, Dtype::kBf16},
                             Nf4Format{4096, true, Dtype::kF16}}) {
      for (std::int64_t index = 0; index < part.parts; ++index) {
        for (std::int64_t expert = 0; expert < part.expert_parts; ++expert) {
          compare(part, format, index, expert);
        }
      }
    }
  }
}

// Sizes of real models keep their blocks whole under every layout. Nested scales are repeated where
// the columns of a rank are no multiple of what they cover.
TEST(Nf4Weights, BlocksOfRealModelsAreKeptWhole) {
  Param down;
  down.shape = {4096, 14336};
  down.split = {Axis::kTp, 1, {}};
  down.nf4 = {64, true};
  down.format = ParamFormat::kNf4;
  const std::map<std::int64_t, double> most_bits = {{1, 4.16}, {2, 4.19}, {4, 4.26}, {8, 4.38}};
  for (const auto& [tp, bits] : most_bits) {
    Nf4Layout layout = nf4_layout(down, {tp, 0});
    EXPECT_EQ(layout.run, 64);
    EXPECT_EQ(layout.elements, 4096 * 14336 / tp);
    EXPECT_LT(8.0 * static_cast<double>(layout.bytes()),
              bits * static_cast<double>(layout.elements));
  }
}

}  // namespace
}  // namespace bev
