// Integer division rounded up, and rounding up to a multiple, for host and device code.
#pragma once

#include <type_traits>

namespace bev {

// How many parts of `step` hold n >= 0.
template <class N, class Step>
constexpr std::common_type_t<N, Step> ceil_div(N n, Step step) {
  return (n + step - 1) / step;
}
// The least multiple of `step` that is not below n >= 0.
template <class N, class Step>
constexpr std::common_type_t<N, Step> round_up(N n, Step step) {
  return ceil_div(n, step) * step;
}

}  // namespace bev
