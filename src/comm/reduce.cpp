#include "comm/reduce.h"

#include <algorithm>
#include <array>
#include <type_traits>

#include "base/error.h"

namespace bev {

namespace {
constexpr std::int64_t kBlock = 1024;

template <class T>
void reduce_typed(Reduction reduction, std::span<const void* const> sources, void* out,
                  std::int64_t count) {
  using Sum = std::conditional_t<std::is_same_v<T, Bf16> || std::is_same_v<T, F16>, float, T>;
  std::array<Sum, kBlock> sum;
  auto* to = static_cast<T*>(out);
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    std::int64_t n = std::min(kBlock, count - begin);
    for (std::size_t s = 0; s < sources.size(); ++s) {
      const T* from = static_cast<const T*>(sources[s]) + begin;
      for (std::int64_t i = 0; i < n; ++i) {
        auto at = static_cast<std::size_t>(i);
        Sum value = static_cast<Sum>(from[i]);
        if (s == 0) {
          sum[at] = value;
        } else {
          // A maximum must propagate NaN: value > sum is false if either is NaN.
          sum[at] = reduction == Reduction::kSum          ? static_cast<Sum>(sum[at] + value)
                    : (value > sum[at] || value != value) ? value
                                                          : sum[at];
        }
      }
    }
    for (std::int64_t i = 0; i < n; ++i)
      to[begin + i] = static_cast<T>(sum[static_cast<std::size_t>(i)]);
  }
}
}  // namespace

void reduce_elements(Dtype dtype, Reduction reduction, std::span<const void* const> sources,
                     void* out, std::int64_t count) {
  switch (dtype) {
    case Dtype::kF64:
      return reduce_typed<double>(reduction, sources, out, count);
    case Dtype::kF32:
      return reduce_typed<float>(reduction, sources, out, count);
    case Dtype::kBf16:
      return reduce_typed<Bf16>(reduction, sources, out, count);
    case Dtype::kF16:
      return reduce_typed<F16>(reduction, sources, out, count);
    case Dtype::kI64:
      return reduce_typed<std::int64_t>(reduction, sources, out, count);
    case Dtype::kI32:
      return reduce_typed<std::int32_t>(reduction, sources, out, count);
    case Dtype::kU8:
      return reduce_typed<std::uint8_t>(reduction, sources, out, count);
  }
}

}  // namespace bev
