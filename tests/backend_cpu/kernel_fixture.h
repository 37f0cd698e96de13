// Fixture for kernel tests: typed buffers with double values, deterministic values, and all ISA
// levels of this CPU with several thread counts, whose results must agree bitwise.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "backend/cpu/cpu_kernels.h"
#include "base/philox.h"
#include "base/thread_pool.h"
#include "kernels/kernels.h"
#include "tensor/dtype.h"
#include "tensor/stream.h"
#include "tensor/view.h"

namespace bev::kernel_test {

inline const std::vector<Dtype> kFloats = {Dtype::kF64, Dtype::kF32, Dtype::kBf16, Dtype::kF16};

inline Dtype accumulate_dtype(Dtype dtype) {
  return dtype == Dtype::kF64 ? Dtype::kF64 : Dtype::kF32;
}

// Half a unit in the last place, relative.
inline double epsilon_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF64:
      return 0x1p-53;
    case Dtype::kF32:
      return 0x1p-24;
    case Dtype::kBf16:
      return 0x1p-9;
    default:
      return 0x1p-11;
  }
}

// Owns memory between guard bytes.
class Buffer {
 public:
  Buffer(Dtype dtype, Shape shape, const std::vector<double>& values)
      : dtype_(dtype), shape_(shape) {
    bytes_.assign(view_bytes() + 2 * kGuard, std::byte{0xa5});
    for (std::size_t i = 0; i < values.size(); ++i) set(i, values[i]);
  }
  // All values are NaN.
  Buffer(Dtype dtype, Shape shape)
      : Buffer(dtype, shape,
               std::vector<double>(static_cast<std::size_t>(shape.numel()),
                                   std::numeric_limits<double>::quiet_NaN())) {}

  View view() { return {bytes_.data() + kGuard, dtype_, shape_}; }
  void set(std::size_t i, double value) {
    visit_float(dtype_, [&](auto type) {
      using T = decltype(type);
      static_cast<T*>(view().data)[i] = T(static_cast<accumulate_t<T>>(value));
    });
  }
  std::vector<double> values() {
    std::vector<double> out(static_cast<std::size_t>(shape_.numel()));
    visit_float(dtype_, [&](auto type) {
      using T = decltype(type);
      for (std::size_t i = 0; i < out.size(); ++i) {
        out[i] = static_cast<accumulate_t<T>>(static_cast<const T*>(view().data)[i]);
      }
    });
    return out;
  }
  std::string bits() {
    return {reinterpret_cast<const char*>(bytes_.data()) + kGuard, view_bytes()};
  }
  bool guards_intact() const {
    for (std::size_t i = 0; i < kGuard; ++i) {
      if (bytes_[i] != std::byte{0xa5} || bytes_[bytes_.size() - 1 - i] != std::byte{0xa5})
        return false;
    }
    return true;
  }

 private:
  static constexpr std::size_t kGuard = 64;
  std::size_t view_bytes() const {
    return static_cast<std::size_t>(shape_.numel()) * size_of(dtype_);
  }
  Dtype dtype_;
  Shape shape_;
  std::vector<std::byte> bytes_;
};

// Values in [-scale, scale) that every float dtype represents closely.
inline std::vector<double> numbers(std::int64_t count, std::uint64_t key, double scale = 1) {
  std::vector<double> out(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < out.size(); ++i) {
    PhiloxCounter words = philox({static_cast<std::uint32_t>(i), 0, 0, 0}, key);
    out[i] = scale * (2 * static_cast<double>(uniform_of(words[0])) - 1);
  }
  return out;
}

inline Buffer random_buffer(Dtype dtype, Shape shape, std::uint64_t key, double scale = 1) {
  return Buffer(dtype, shape, numbers(shape.numel(), key, scale));
}

inline std::vector<CpuLevel> levels() {
  std::vector<CpuLevel> out;
  for (CpuLevel level : {CpuLevel::kV2, CpuLevel::kV3, CpuLevel::kV4}) {
    if (level <= best_cpu_level()) out.push_back(level);
  }
  return out;
}

// Calls body(kernels, stream) for every ISA level with 1, 2 and 3 threads; body returns the bits of
// its result, which must not depend on the thread count.
template <class Body>
void on_every_level(const Body& body) {
  for (CpuLevel level : levels()) {
    SCOPED_TRACE("level v" + std::to_string(static_cast<int>(level) + 2));
    std::string first;
    for (int threads : {1, 2, 3}) {
      ThreadPool pool(threads);
      Stream stream{.pool = &pool};
      std::string bits = body(cpu_kernels(level), stream);
      if (threads == 1) first = bits;
      EXPECT_TRUE(bits == first) << "bits differ with " << threads << " threads";
    }
  }
}

// Expects |got - want| <= tolerance * max(1, |want|) for all; NaN and infinities must match.
inline void expect_near(const std::vector<double>& got, const std::vector<double>& want,
                        double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  int shown = 0;
  for (std::size_t i = 0; i < got.size() && shown < 4; ++i) {
    bool same = got[i] == want[i] || (std::isnan(got[i]) && std::isnan(want[i]));
    if (same || std::fabs(got[i] - want[i]) <= tolerance * std::max(1.0, std::fabs(want[i]))) {
      continue;
    }
    ++shown;
    ADD_FAILURE() << "element " << i << ": " << got[i] << ", expected " << want[i] << " within "
                  << tolerance;
  }
}

}  // namespace bev::kernel_test
