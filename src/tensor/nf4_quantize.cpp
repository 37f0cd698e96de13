#include "tensor/nf4_quantize.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/error.h"

namespace bev {

namespace {

constexpr std::array<float, 15> thresholds() {
  std::array<float, 15> middles{};
  for (std::size_t i = 0; i < middles.size(); ++i) {
    middles[i] = (kNf4Values[i] + kNf4Values[i + 1]) / 2;
  }
  return middles;
}
constexpr std::array<float, 15> kThresholds = thresholds();

// A value above a threshold takes the upper code.
std::uint8_t code_of(float value) {
  std::uint8_t code = 0;
  for (float threshold : kThresholds) code += value > threshold ? 1 : 0;
  return code;
}

// The code of 0, which fills up the last byte of an odd number of values.
constexpr std::uint8_t kZeroCode = 7;

// The smallest absmax that a block is divided by.
constexpr float kLeastAbsmax = 1e-38f;

// Quantises one block; `put` receives codes in order. Whole blocks are multiplied by the reciprocal
// and a partial one is divided, which differs in the last bit.
template <class Put>
float quantize_block(std::span<const float> values, bool whole, const Put& put) {
  float absmax = 0;
  for (float value : values) absmax = std::max(absmax, std::abs(value));
  float divisor = std::max(absmax, kLeastAbsmax), factor = 1.0f / divisor;
  for (float value : values) {
    put(code_of(std::clamp(whole ? value * factor : value / divisor, -1.0f, 1.0f)));
  }
  return whole ? absmax : divisor;
}

// Sums rows of 8 x 4 lanes, PyTorch's order on x86-64: chunks of 2^power rows are summed by
// themselves and their sums on three more levels, so that the error grows with the logarithm.
constexpr std::size_t kLanes = 8, kRows = 4, kLevels = 4;
using LaneSums = std::array<float, kLanes * kRows>;

void add_to(LaneSums& sums, const float* more) {
  for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += more[i];
}

LaneSums cascade_sum(const float* values, std::size_t rows) {
  std::array<LaneSums, kLevels> levels{};
  std::size_t bits = std::bit_width(rows > 1 ? rows - 1 : 0);
  std::size_t power = std::max<std::size_t>(4, bits / kLevels), step = std::size_t{1} << power;
  std::size_t row = 0;
  while (row + step <= rows) {
    for (std::size_t end = row + step; row < end; ++row) {
      add_to(levels[0], values + row * kLanes * kRows);
    }
    for (std::size_t level = 1; level < kLevels; ++level) {
      add_to(levels[level], levels[level - 1].data());
      levels[level - 1] = {};
      if ((row & ((step - 1) << (level * power))) != 0) break;
    }
  }
  for (; row < rows; ++row) add_to(levels[0], values + row * kLanes * kRows);
  for (std::size_t level = 1; level < kLevels; ++level) add_to(levels[0], levels[level].data());
  return levels[0];
}

// The same for fewer numbers than lanes: one row of four, then the others.
float sum_few(const std::vector<float>& values) {
  std::array<float, kRows> sums{};
  std::size_t whole = values.size() < kRows ? 0 : kRows;
  for (std::size_t i = 0; i < whole; ++i) sums[i] = values[i];
  for (std::size_t i = whole; i < values.size(); ++i) sums[0] += values[i];
  for (std::size_t i = 1; i < kRows; ++i) sums[0] += sums[i];
  return sums[0];
}

// The mean in f32 with PyTorch's order of additions, so that the offset has its bits.
float mean(const std::vector<float>& values) {
  if (values.empty()) return 0;
  if (values.size() < kLanes) return sum_few(values) / static_cast<float>(values.size());
  std::size_t vectors = values.size() / kLanes, rows = vectors / kRows;
  LaneSums sums = cascade_sum(values.data(), rows);
  for (std::size_t i = rows * kRows; i < vectors; ++i) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) sums[lane] += values[i * kLanes + lane];
  }
  for (std::size_t row = 1; row < kRows; ++row) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) sums[lane] += sums[row * kLanes + lane];
  }
  float sum = 0;
  for (std::size_t i = vectors * kLanes; i < values.size(); ++i) sum += values[i];
  for (std::size_t lane = 0; lane < kLanes; ++lane) sum += sums[lane];
  return sum / static_cast<float>(values.size());
}

// The nearest value of the map, the lower one of two. As bitsandbytes does on a CPU, `value` is
// rounded to the middle of one of 65536 bins first. NaN, which is 0 / 0, takes code 0.
std::uint8_t map_code(const std::vector<float>& map, float value) {
  if (std::isnan(value)) return 0;
  float bin = std::floor((value + 1.0f) * 32767.5f + 0.5f);
  auto middle = static_cast<float>(static_cast<double>(bin) / 32767.5 - 1);
  auto above = std::upper_bound(map.begin() + 1, map.end() - 1, middle);
  auto index = static_cast<std::size_t>(above - map.begin()) - 1;
  bool upper = std::abs(map[index + 1] - middle) < std::abs(middle - map[index]);
  return static_cast<std::uint8_t>(index + (upper ? 1 : 0));
}

}  // namespace

std::vector<float> nf4_dynamic_map() {
  // Middles of the steps of PyTorch's linspace(0.1, 1), which is computed by fma.
  std::vector<float> map = {0, 1};
  for (int power = 0; power < 7; ++power) {
    int parts = 1 << power;
    float step = (1.0f - 0.1f) / static_cast<float>(parts);
    auto bound = [&](int i) {
      return i < (parts + 1) / 2 ? std::fma(step, static_cast<float>(i), 0.1f)
                                 : std::fma(-step, static_cast<float>(parts - i), 1.0f);
    };
    auto factor = static_cast<float>(std::pow(10.0, power - 6));
    for (int i = 0; i < parts; ++i) {
      float value = factor * ((bound(i) + bound(i + 1)) / 2);
      map.insert(map.end(), {value, -value});
    }
  }
  std::sort(map.begin(), map.end());
  return map;
}

std::int64_t quantize_nf4(std::span<const float> values, std::int64_t block,
                          std::span<std::uint8_t> codes, std::span<float> absmax) {
  auto bad = std::find_if(values.begin(), values.end(), [](float x) { return !std::isfinite(x); });
  if (bad != values.end()) return bad - values.begin();
  std::size_t size = static_cast<std::size_t>(block), at = 0;
  std::fill(codes.begin(), codes.end(), std::uint8_t{0});
  if (values.size() % 2 != 0) codes.back() = kZeroCode;
  for (std::size_t begin = 0, index = 0; begin < values.size(); begin += size, ++index) {
    std::size_t count = std::min(size, values.size() - begin);
    absmax[index] =
        quantize_block(values.subspan(begin, count), count == size, [&](std::uint8_t code) {
          codes[at / 2] |= static_cast<std::uint8_t>(at % 2 == 0 ? code << 4 : code);
          ++at;
        });
  }
  return -1;
}

Nf4Scales make_nf4_scales(std::vector<float> absmax, const Nf4Format& format) {
  Nf4Scales scales;
  scales.block = format.block;
  if (!format.double_quant) {
    scales.absmax = std::move(absmax);
    return scales;
  }
  scales.map = nf4_dynamic_map();
  scales.offset = mean(absmax);
  for (float& value : absmax) value -= scales.offset;
  constexpr auto kBlocks = static_cast<std::size_t>(kNf4NestedBlocks);
  for (std::size_t begin = 0; begin < absmax.size(); begin += kBlocks) {
    std::span<const float> run(absmax.data() + begin, std::min(kBlocks, absmax.size() - begin));
    float most = 0;
    for (float value : run) most = std::max(most, std::abs(value));
    scales.absmax.push_back(most);
    for (float value : run) scales.codes.push_back(map_code(scales.map, value / most));
  }
  return scales;
}

float Nf4Scales::of_block(std::int64_t index) const {
  auto at = static_cast<std::size_t>(index);
  if (!nested()) return absmax[at];
  return map[codes[at]] * absmax[at / kNf4NestedBlocks] + offset;
}

void dequantize_nf4(std::span<const std::uint8_t> codes, const Nf4Scales& scales, Dtype dtype,
                    std::int64_t begin, std::int64_t count, float* out) {
  visit_float(dtype, [&](auto element) {
    using T = decltype(element);
    for (std::int64_t at = begin, end = begin + count; at < end;) {
      std::int64_t block = at / scales.block;
      float absmax = scales.of_block(block);
      for (std::int64_t stop = std::min(end, (block + 1) * scales.block); at < stop; ++at) {
        unsigned pair = codes[static_cast<std::size_t>(at / 2)];
        float value = kNf4Values[at % 2 == 0 ? pair >> 4 : pair & 15] * absmax;
        *out++ = static_cast<float>(T(value));
      }
    }
  });
}

}  // namespace bev
