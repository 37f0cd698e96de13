// Integer division rounded up, and rounding up to a multiple.
#pragma once

#include <cstdint>

namespace bev {

constexpr std::int64_t ceil_div(std::int64_t n, std::int64_t step) { return (n + step - 1) / step; }
constexpr std::int64_t round_up(std::int64_t n, std::int64_t step) {
  return ceil_div(n, step) * step;
}

}  // namespace bev
