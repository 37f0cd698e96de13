#include "bridge/convert.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

namespace bev {

namespace {
// Rounds to odd: if the value is not a float, returns the neighbour with an odd last bit. Rounding
// that to 16 bits then equals rounding the double directly (no double rounding).
float round_to_odd(double value) {
  auto nearest = static_cast<float>(value);
  if (static_cast<double>(nearest) == value || std::isnan(value)) return nearest;
  auto bits = std::bit_cast<std::uint32_t>(nearest);
  if (std::abs(static_cast<double>(nearest)) > std::abs(value)) --bits;
  return std::bit_cast<float>(bits | 1u);
}

template <class From, class To>
To convert_one(From value) {
  if constexpr (std::is_same_v<From, To>) {
    return value;
  } else if constexpr (std::is_same_v<From, double> && sizeof(To) == 2) {
    return To(round_to_odd(value));
  } else if constexpr (sizeof(To) == 2) {
    return To(static_cast<float>(value));
  } else if constexpr (sizeof(From) == 2) {
    return static_cast<To>(static_cast<float>(value));
  } else {
    return static_cast<To>(value);
  }
}

template <class T>
T load(const void* data, std::int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(data) + static_cast<std::size_t>(index) * sizeof(T),
              sizeof(T));
  return value;
}

template <class T>
void store(void* data, std::int64_t index, T value) {
  std::memcpy(static_cast<char*>(data) + static_cast<std::size_t>(index) * sizeof(T), &value,
              sizeof(T));
}

// Calls f(From{}, To{}).
template <class F>
void visit_pair(Dtype from, Dtype to, F&& f) {
  visit_float(from, [&](auto source) { visit_float(to, [&](auto target) { f(source, target); }); });
}
}  // namespace

void convert_elements(ConstElements from, Elements to, std::int64_t count) {
  if (from.dtype == to.dtype) {
    std::memcpy(to.data, from.data, static_cast<std::size_t>(count) * size_of(to.dtype));
    return;
  }
  visit_pair(from.dtype, to.dtype, [&](auto source, auto target) {
    using From = decltype(source);
    using To = decltype(target);
    for (std::int64_t i = 0; i < count; ++i) {
      store(to.data, i, convert_one<From, To>(load<From>(from.data, i)));
    }
  });
}

void transpose_elements(ConstElements from, Elements to, std::int64_t rows, std::int64_t columns) {
  constexpr std::int64_t kBlock = 32;  // source and target blocks fit the L1 cache
  visit_pair(from.dtype, to.dtype, [&](auto source, auto target) {
    using From = decltype(source);
    using To = decltype(target);
    for (std::int64_t row = 0; row < rows; row += kBlock) {
      for (std::int64_t column = 0; column < columns; column += kBlock) {
        for (std::int64_t j = column; j < std::min(column + kBlock, columns); ++j) {
          for (std::int64_t i = row; i < std::min(row + kBlock, rows); ++i) {
            store(to.data, j * rows + i,
                  convert_one<From, To>(load<From>(from.data, i * columns + j)));
          }
        }
      }
    }
  });
}

}  // namespace bev
