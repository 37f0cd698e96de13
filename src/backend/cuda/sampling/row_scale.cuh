// A row of logits as sampling sees it. Weights are probabilities as integers, the largest being
// 2^bits, so that sums do not depend on their order. Bins cut the range of logits that have a
// weight into equal steps, from the largest logit down.
#pragma once

#include <cstdint>

#include "backend/cuda/device/reduce.cuh"

namespace bev::cuda {

using Word = unsigned long long;  // the type that atomicAdd takes

// What a row, or a part of it, contains.
struct Extent {
  float most, least;  // least: of the finite ones
  int at;             // of the largest, the first one
  int bad;            // holds NaN or +infinity

  __device__ static Extent nothing() { return {-__builtin_inff(), __builtin_inff(), 0, 0}; }
  __device__ void take(float x, int token) {
    bad |= !(x < __builtin_inff());
    if (x > most) {
      most = x;
      at = token;
    }
    if (x > -__builtin_inff()) least = fminf(least, x);
  }
  __device__ void join(const Extent& other) {
    const bool theirs = other.most > most || (other.most == most && other.at < at);
    if (theirs) {
      most = other.most;
      at = other.at;
    }
    least = fminf(least, other.least);
    bad |= other.bad;
  }
  __device__ bool finite() const { return bad == 0 && most > -__builtin_inff(); }
};

// Over the lanes of a warp; every lane gets the result.
__device__ inline Extent reduce_extent(Extent own) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    Extent other;
    other.most = __shfl_xor_sync(0xffffffffu, own.most, distance);
    other.least = __shfl_xor_sync(0xffffffffu, own.least, distance);
    other.at = __shfl_xor_sync(0xffffffffu, own.at, distance);
    other.bad = __shfl_xor_sync(0xffffffffu, own.bad, distance);
    own.join(other);
  }
  return own;
}

constexpr int kBins = 2048, kPastBin = kBins - 1;  // the last bin: logits without a weight
constexpr double kLeastTemperature = 1e-30, kMostTemperature = 1e30;

struct RowScale {
  float most = 0;
  float limit = 0, scale = 0;    // largest distance that has a bin below the last; bins per unit
  float far = __builtin_inff();  // min-p: largest distance that is kept
  double per_unit = 0;           // halvings of the weight per unit of distance
  int bits = 0;

  __device__ RowScale(const Extent& row, double temperature, double min_p, int weight_bits)
      : most(row.most), bits(weight_bits) {
    temperature = fmin(fmax(temperature, kLeastTemperature), kMostTemperature);
    // exp(-32) of the largest weight rounds to 0.
    set_limit(fminf(static_cast<float>(32 * temperature), row.most - row.least));
    per_unit = 1.4426950408889634 / temperature;
    if (min_p > 0) far = static_cast<float>(-temperature * log(min_p));
  }
  // Bins over all finite logits, without weights; a single bin if some are not even -infinity.
  __device__ explicit RowScale(const Extent& row) : most(row.most) {
    set_limit(row.finite() ? row.most - row.least : __builtin_inff());
  }

  __device__ float distance(float x) const { return most - x; }
  __device__ int bin(float x) const { return bin_at(distance(x)); }
  // Never falls as the distance grows.
  __device__ int bin_at(float distance_from_most) const {
    if (limit < distance_from_most) return kPastBin;
    constexpr float kLastBin = kPastBin - 1;
    return static_cast<int>(fminf(fmaxf(distance_from_most * scale, 0.0f), kLastBin));  // NaN: 0
  }
  __device__ Word weight(float x) const {
    const double halvings = (static_cast<double>(most) - static_cast<double>(x)) * per_unit;
    return __double2ull_rn(exp2(static_cast<double>(bits) - halvings));
  }

 private:
  __device__ void set_limit(float largest) {
    limit = largest;
    scale = limit > 0 ? static_cast<float>(kPastBin) / limit : 0.0f;
  }
};

// The floor of that share of a sum, and less than the sum.
__device__ inline Word share_of(Word sum, double share) {
  const Word part = static_cast<Word>(share * static_cast<double>(sum));
  return part < sum ? part : sum - 1;
}

// A token with its logit; larger means more likely, or as likely with a lower id. NaN counts as
// -infinity.
__device__ inline Word entry_of(float x, int token) {
  if (isnan(x)) x = -__builtin_inff();
  const std::uint32_t bits = __float_as_uint(x + 0.0f);  // -0 becomes 0
  const std::uint32_t key = bits ^ ((bits >> 31) != 0 ? 0xffffffffu : 0x80000000u);
  return Word{key} << 32 | (0xffffffffu - static_cast<std::uint32_t>(token));
}
__device__ inline float logit_of(Word entry) {
  const auto key = static_cast<std::uint32_t>(entry >> 32);
  return __uint_as_float((key >> 31) != 0 ? key ^ 0x80000000u : ~key);
}
__device__ inline int token_of(Word entry) {
  return static_cast<int>(0xffffffffu - static_cast<std::uint32_t>(entry));
}
// The smallest entry with the same logit.
__device__ inline Word first_equal(Word entry) { return entry & ~Word{0xffffffffu}; }

}  // namespace bev::cuda
