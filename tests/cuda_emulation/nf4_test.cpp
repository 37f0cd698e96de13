// Dequantisation of NF4 weights and the GEMMs that read them.
#include "tensor/nf4.h"

#include <gtest/gtest.h>

#include "backend/cuda/quantize/nf4_launchers.h"
#include "tensor/nf4_quantize.h"
#include "tests/cuda_emulation/emulated_stream.h"

namespace bev::cuda_emulation {
namespace {
using namespace kernel_test;

// A weight on the emulated device, in runs that are shorter than its blocks by `parts`.
class Weight {
 public:
  Weight(std::int64_t elements, Nf4Format format, std::int64_t parts = 1) : format_(format) {
    Buffer values = random_buffer(Dtype::kF32, {elements}, 7);
    std::vector<float> floats(values.view().as<float>(), values.view().as<float>() + elements);
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(nf4_code_bytes(elements)));
    std::vector<float> absmax(static_cast<std::size_t>(ceil_div(elements, format.block)));
    EXPECT_EQ(quantize_nf4(floats, format.block, codes, absmax), -1);
    Nf4Scales scales = make_nf4_scales(absmax, format);
    layout_ = {elements, format.block / parts, 0};
    if (format.double_quant) layout_.nested_run = format.block * kNf4NestedBlocks / parts;
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(layout_.bytes()));
    std::copy(codes.begin(), codes.end(), bytes.begin());
    for (std::int64_t run = 0; run < layout_.runs(); ++run) {
      auto block = static_cast<std::size_t>(run / parts);
      if (!format.double_quant) {
        put(bytes, layout_.absmax_begin() + 4 * run, scales.absmax[block]);
        continue;
      }
      bytes[static_cast<std::size_t>(layout_.absmax_begin() + run)] = scales.codes[block];
      std::int64_t nested = layout_.nested_begin() + 8 * (run * layout_.run / layout_.nested_run);
      put(bytes, nested, scales.absmax[block / kNf4NestedBlocks]);
      put(bytes, nested + 4, scales.offset);
    }
    for (std::size_t i = 0; i < scales.map.size(); ++i) {
      put(bytes, layout_.map_begin() + 4 * static_cast<std::int64_t>(i), scales.map[i]);
    }
    memory_ = std::make_unique<DeviceArray<std::uint8_t>>(bytes);
    values_.resize(static_cast<std::size_t>(elements));
    dequantize_nf4(codes, scales, format.dtype, 0, elements, values_.data());
  }

  Nf4View view() { return {memory_->data(), layout_, format_.dtype}; }
  const std::vector<float>& values() const { return values_; }

 private:
  static void put(std::vector<std::uint8_t>& bytes, std::int64_t at, float value) {
    std::memcpy(bytes.data() + at, &value, sizeof value);
  }

  Nf4Format format_;
  Nf4Layout layout_;
  std::unique_ptr<DeviceArray<std::uint8_t>> memory_;
  std::vector<float> values_;
};

TEST(EmulatedNf4, DequantisesAnyLayoutToTheBitsOfTheHost) {
  EmulatedStream stream;
  struct Case {
    std::int64_t elements;
    Nf4Format format;
    std::int64_t parts;
  };
  for (const Case& item :
       {Case{1, {64, false}, 1}, Case{4096 + 8, {64, true}, 1}, Case{999, {64, true}, 64},
        Case{70000, {32, true, Dtype::kBf16}, 8}, Case{2050, {128, false, Dtype::kF16}, 1}}) {
    Weight weight(item.elements, item.format, item.parts);
    for (Dtype dtype : {Dtype::kF32, Dtype::kBf16, Dtype::kF16}) {
      DeviceTensor out(dtype, {item.elements});
      cuda::dequantize_nf4(stream, weight.view(), out.view());
      EXPECT_TRUE(out.intact());
      Buffer wanted(dtype, {item.elements});
      visit_float(dtype, [&](auto type) {
        using T = decltype(type);
        for (std::int64_t i = 0; i < item.elements; ++i) {
          static_cast<T*>(wanted.view().data)[i] = T(weight.values()[static_cast<std::size_t>(i)]);
        }
      });
      EXPECT_EQ(out.values(), wanted.values()) << item.elements << " " << name_of(dtype);
    }
  }
}

struct Case {
  std::int64_t tokens, out, in;
  Nf4Format format;
  std::int64_t parts = 1;
  Dtype dtype = Dtype::kBf16;
};

// c [T, O] = x w^T + bias, or c [T, I] = dy w, against sums in f64.
void check_gemm(const Case& item, bool forward) {
  Weight weight(item.out * item.in, item.format, item.parts);
  std::int64_t depth = forward ? item.in : item.out, columns = forward ? item.out : item.in;
  Buffer a = random_buffer(item.dtype, {item.tokens, depth}, 3);
  Buffer bias = random_buffer(item.dtype, {columns}, 5);
  DeviceTensor device_a(a.view()), device_bias(bias.view()), c(item.dtype, {item.tokens, columns});
  Nf4GemmArgs args{device_a.view(), weight.view(), {item.out, item.in}, c.view(), forward, {}};
  if (forward) args.bias = device_bias.view();
  ASSERT_TRUE(cuda::takes_nf4(args));
  EmulatedStream stream({.schedule = forward ? Schedule::kRandom : Schedule::kLast});
  cuda::nf4_gemm(stream, args);
  EXPECT_TRUE(c.intact());
  std::vector<double> wanted, left = a.values(), added = bias.values();
  for (std::int64_t row = 0; row < item.tokens; ++row) {
    for (std::int64_t column = 0; column < columns; ++column) {
      double sum = forward ? added[static_cast<std::size_t>(column)] : 0;
      for (std::int64_t k = 0; k < depth; ++k) {
        std::int64_t at = forward ? column * item.in + k : k * item.in + column;
        float value = weight.values()[static_cast<std::size_t>(at)];
        double rounded = item.dtype == Dtype::kBf16 ? static_cast<double>(Bf16(value))
                                                    : static_cast<double>(F16(value));
        sum += left[static_cast<std::size_t>(row * depth + k)] * rounded;
      }
      wanted.push_back(sum);
    }
  }
  expect_near(c.values(), wanted, 2 * epsilon_of(item.dtype));
}

TEST(EmulatedNf4, GemmsMatchTheDefinition) {
  const std::vector<Case> cases = {
      {1, 8, 16, {64, false}},
      {3, 136, 48, {64, true}, 4},
      {130, 264, 144, {64, true, Dtype::kBf16}, 4},
      {17, 128, 320, {32, false, Dtype::kF16}, 1, Dtype::kF16},
      {128, 40, 32, {4096, true}},
  };
  for (const Case& item : cases) {
    SCOPED_TRACE(testing::Message() << item.tokens << " x " << item.out << " x " << item.in);
    try {
      check_gemm(item, true);
      check_gemm(item, false);
    } catch (const KernelFault& error) {
      ADD_FAILURE() << error.what();
    }
  }
}

TEST(EmulatedNf4, GemmsThatAreBetterDequantisedFirstAreLeft) {
  Weight weight(64 * 64, {64, false, Dtype::kF16});
  Buffer a = random_buffer(Dtype::kBf16, {600, 64}, 3);
  Nf4View view = weight.view();
  auto takes = [&](std::int64_t rows, Shape shape, Nf4View w) {
    View x = a.view().rows(0, rows);
    return cuda::takes_nf4({x, w, shape, {nullptr, Dtype::kBf16, {rows, shape[0]}}, true, {}});
  };
  EXPECT_FALSE(takes(8, {64, 64}, view));  // values of f16 would be rounded twice
  view.dtype = Dtype::kBf16;
  EXPECT_TRUE(takes(8, {64, 64}, view));
  EXPECT_FALSE(takes(600, {64, 64}, view));
  EXPECT_FALSE(takes(8, {2, 64, 32}, view));
  view.layout.run = 8;
  EXPECT_FALSE(takes(8, {64, 64}, view));
}

}  // namespace
}  // namespace bev::cuda_emulation
