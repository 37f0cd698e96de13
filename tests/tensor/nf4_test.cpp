#include "tensor/nf4.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "tensor/nf4_quantize.h"

namespace bev {
namespace {

using Json = nlohmann::json;

// What bitsandbytes makes of values that `values` makes again; see make_nf4.py.
const Json& golden() {
  static const Json vectors =
      Json::parse(std::ifstream(BEV_SOURCE_DIR "/tests/golden/nf4/vectors.json"));
  return vectors;
}

std::vector<float> floats(const Json& hexes) {
  std::vector<float> out;
  for (const Json& text : hexes)
    out.push_back(std::strtof(text.get<std::string>().c_str(), nullptr));
  return out;
}

std::vector<std::uint8_t> bytes(const Json& hex) {
  const auto text = hex.get<std::string>();
  std::vector<std::uint8_t> out;
  for (std::size_t i = 0; i < text.size(); i += 2) {
    out.push_back(static_cast<std::uint8_t>(std::stoi(text.substr(i, 2), nullptr, 16)));
  }
  return out;
}

std::vector<float> values(std::int64_t count, std::uint64_t seed, int shift, Dtype dtype) {
  std::vector<float> out;
  for (std::int64_t i = 0; i < count; ++i) {
    auto word = static_cast<std::uint32_t>(static_cast<std::uint64_t>(i + 1) * 2654435761u *
                                           (2 * seed + 1));
    float x = static_cast<float>(word >> 8) * 0x1p-24f - 0.5f;
    x *= static_cast<float>(1 + (i / 64) % 37);
    int half = shift >= 0 ? shift / 2 : (shift - 1) / 2;
    x = x * std::ldexp(1.0f, half) * std::ldexp(1.0f, shift - half);
    visit_float(dtype, [&](auto t) { out.push_back(static_cast<float>(decltype(t)(x))); });
  }
  return out;
}

std::int64_t blocks_of(const std::vector<float>& x, std::int64_t block) {
  return ceil_div(static_cast<std::int64_t>(x.size()), block);
}

struct Coded {
  std::vector<std::uint8_t> codes;
  std::vector<float> absmax;
  std::int64_t bad;
};
Coded quantize(const std::vector<float>& x, std::int64_t block) {
  Coded out{std::vector<std::uint8_t>((x.size() + 1) / 2, 0xee),
            std::vector<float>(static_cast<std::size_t>(blocks_of(x, block))), 0};
  out.bad = quantize_nf4(x, block, out.codes, out.absmax);
  return out;
}

TEST(Nf4, TableAndDynamicMapAreThoseOfBitsandbytes) {
  EXPECT_EQ(std::vector<float>(kNf4Values.begin(), kNf4Values.end()), floats(golden()["table"]));
  EXPECT_EQ(nf4_dynamic_map(), floats(golden()["map"]));
}

TEST(Nf4, CodesAndScalesAreThoseOfBitsandbytes) {
  for (const Json& wanted : golden()["cases"]) {
    SCOPED_TRACE(wanted["seed"].dump());
    std::int64_t block = wanted["block"];
    std::vector<float> x = values(wanted["size"], wanted["seed"], wanted["shift"],
                                  *parse_dtype(wanted["dtype"].get<std::string>()));
    Coded coded = quantize(x, block);
    EXPECT_EQ(coded.bad, -1);
    EXPECT_EQ(coded.codes, bytes(wanted["codes"]));
    EXPECT_EQ(coded.absmax, floats(wanted["absmax"]));
    Nf4Scales scales = make_nf4_scales(coded.absmax, {block, true});
    EXPECT_EQ(scales.offset, floats(Json::array({wanted["offset"]}))[0]);
    EXPECT_EQ(scales.absmax, floats(wanted["nested_absmax"]));
    EXPECT_EQ(scales.codes, bytes(wanted["absmax_codes"]));
  }
}

TEST(Nf4, OffsetIsTheMeanWithTheBitsOfPyTorch) {
  const Json& means = golden()["means"];
  for (std::size_t i = 0; i < means.size(); ++i) {
    const Json& wanted = means[i];
    std::uint64_t count = wanted[0], seed = 100 * count + i % 8;
    std::vector<float> x = values(static_cast<std::int64_t>(count), seed, 0, Dtype::kF32);
    for (float& value : x) value = std::abs(value);
    EXPECT_EQ(make_nf4_scales(x, {64, true}).offset, floats(Json::array({wanted[1]}))[0]) << count;
  }
}

// The example of the reference.
TEST(Nf4, KnownBytes) {
  std::vector<float> x;
  for (int i = 0; i < 64; ++i) {
    x.push_back(static_cast<float>(0.02 * std::sin(0.7 * i) * (1 + 0.1 * (i % 5))));
  }
  Coded coded = quantize(x, 64);
  EXPECT_EQ(coded.codes, bytes("7deeb41027ceeb31127eeea30128dfda31038dfe941028deea41128deea31128"));
  EXPECT_EQ(coded.absmax, std::vector<float>{0.027797459363405386f});
}

TEST(Nf4, EveryCodeAndEveryThresholdRoundsAsTheTableSays) {
  for (int code = 0; code < 16; ++code) {
    std::vector<float> x(64, 0);
    x[0] = -1;
    x[1] = kNf4Values[static_cast<std::size_t>(code)];
    if (code < 15) {
      x[2] = (kNf4Values[static_cast<std::size_t>(code)] +
              kNf4Values[static_cast<std::size_t>(code) + 1]) /
             2;  // a threshold itself takes the lower code
      x[3] = std::nextafter(x[2], 2.0f);
    }
    Coded coded = quantize(x, 64);
    EXPECT_EQ(coded.codes[0] & 15, code);
    if (code == 15) continue;
    EXPECT_EQ(coded.codes[1] >> 4, code);
    EXPECT_EQ(coded.codes[1] & 15, code + 1);
  }
}

TEST(Nf4, ZerosOfBothSignsAndTheSmallestNumbersComeBack) {
  std::vector<float> x(70, 0);
  x[3] = -0.0f;
  Coded zeros = quantize(x, 64);
  EXPECT_EQ(zeros.codes, std::vector<std::uint8_t>(35, 0x77));
  std::vector<float> out(70, 1);
  dequantize_nf4(zeros.codes, make_nf4_scales(zeros.absmax, {64, true}), Dtype::kF32, 0, 70,
                 out.data());
  for (float value : out) EXPECT_EQ(std::abs(value), 0);

  x.assign(64, std::numeric_limits<float>::denorm_min());
  Coded small = quantize(x, 64);
  EXPECT_EQ(small.absmax[0], x[0]);
  EXPECT_EQ(small.bad, -1);
}

TEST(Nf4, ValuesThatAreNotFiniteAreFound) {
  for (float bad : {NAN, INFINITY, -INFINITY}) {
    std::vector<float> x(200, 1);
    x[131] = bad;
    EXPECT_EQ(quantize(x, 64).bad, 131);
  }
}

TEST(Nf4, AnyRangeOfElementsIsThatOfTheWholeTensorRoundedToItsDtype) {
  std::vector<float> x = values(64 * 5 + 13, 21, 0, Dtype::kBf16);
  for (bool nested : {false, true}) {
    Coded coded = quantize(x, 64);
    Nf4Scales scales = make_nf4_scales(coded.absmax, {64, nested});
    std::vector<float> all(x.size());
    dequantize_nf4(coded.codes, scales, Dtype::kBf16, 0, static_cast<std::int64_t>(x.size()),
                   all.data());
    for (std::size_t i = 0; i < x.size(); ++i) {
      unsigned pair = coded.codes[i / 2];
      float value = kNf4Values[i % 2 == 0 ? pair >> 4 : pair & 15] *
                    scales.of_block(static_cast<std::int64_t>(i) / 64);
      ASSERT_EQ(all[i], static_cast<float>(Bf16(value)));
    }
    std::vector<float> part(100);
    dequantize_nf4(coded.codes, scales, Dtype::kBf16, 61, 100, part.data());
    EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin() + 61));
  }
}

TEST(Nf4, MemoryOfAPartIsFourBitsAndItsScales) {
  Nf4Layout plain{.elements = 4096 * 4096, .run = 64};
  EXPECT_EQ(plain.bytes(), 4096 * 4096 / 2 + 4096 * 4096 / 64 * 4);
  Nf4Layout nested{.elements = 4096 * 4096, .run = 64, .nested_run = 16384};
  EXPECT_EQ(nested.bytes(), 4096 * 4096 / 2 + 4096 * 4096 / 64 + 1024 * 8 + 1024);
  EXPECT_LT(8.0 * static_cast<double>(nested.bytes()) / (4096.0 * 4096), 4.13);
  EXPECT_EQ(Nf4Layout{.elements = 0}.bytes(), 0);
}

}  // namespace
}  // namespace bev
