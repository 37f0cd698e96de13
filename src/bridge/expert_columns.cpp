#include "bridge/expert_columns.h"

#include <cstring>
#include <vector>

namespace bev {

namespace {

// Matrix of one expert.
struct Matrix {
  std::int64_t rows, columns;

  explicit Matrix(const Shape& shape) : rows(shape[1]), columns(shape.row_numel() / shape[1]) {}
  std::int64_t numel() const { return rows * columns; }
};

// Index of row `row` of gate | up in the interleaved order.
std::int64_t turn_of(std::int64_t row, std::int64_t rows) {
  std::int64_t half = rows / 2;
  return row < half ? 2 * row : 2 * (row - half) + 1;
}

// Reorders rows between their order and ours, without conversion.
void order_rows(const Matrix& matrix, std::size_t item, bool from_turns, const std::byte* from,
                std::byte* to) {
  std::size_t bytes = static_cast<std::size_t>(matrix.columns) * item;
  for (std::int64_t row = 0; row < matrix.rows; ++row) {
    auto ours = static_cast<std::size_t>(row);
    auto theirs = static_cast<std::size_t>(turn_of(row, matrix.rows));
    std::memcpy(to + (from_turns ? ours : theirs) * bytes,
                from + (from_turns ? theirs : ours) * bytes, bytes);
  }
}

ConstElements at(ConstElements base, std::int64_t element) {
  return {static_cast<const std::byte*>(base.data) +
              static_cast<std::size_t>(element) * size_of(base.dtype),
          base.dtype};
}
Elements at(Elements base, std::int64_t element) {
  return {
      static_cast<std::byte*>(base.data) + static_cast<std::size_t>(element) * size_of(base.dtype),
      base.dtype};
}

}  // namespace

void read_expert_columns(const ExpertColumns& layout, ConstElements theirs, Elements ours) {
  Matrix matrix(layout.shape);
  std::size_t item = size_of(ours.dtype);
  std::vector<std::byte> rows(static_cast<std::size_t>(matrix.numel()) * item);
  for (std::int64_t expert = 0; expert < layout.shape[0]; ++expert) {
    ConstElements from = at(theirs, expert * matrix.numel());
    Elements to = at(ours, expert * matrix.numel());
    Elements made = layout.in_turns ? Elements{rows.data(), ours.dtype} : to;
    if (layout.transposed) {
      transpose_elements(from, made, matrix.columns, matrix.rows);
    } else {
      convert_elements(from, made, matrix.numel());
    }
    if (layout.in_turns) {
      order_rows(matrix, item, true, rows.data(), static_cast<std::byte*>(to.data));
    }
  }
}

void write_expert_columns(const ExpertColumns& layout, ConstElements ours, Elements theirs) {
  Matrix matrix(layout.shape);
  std::size_t item = size_of(ours.dtype);
  std::vector<std::byte> rows(static_cast<std::size_t>(matrix.numel()) * item);
  for (std::int64_t expert = 0; expert < layout.shape[0]; ++expert) {
    ConstElements from = at(ours, expert * matrix.numel());
    Elements to = at(theirs, expert * matrix.numel());
    if (layout.in_turns) {
      order_rows(matrix, item, false, static_cast<const std::byte*>(from.data), rows.data());
      from = {rows.data(), ours.dtype};
    }
    if (layout.transposed) {
      transpose_elements(from, to, matrix.rows, matrix.columns);
    } else {
      convert_elements(from, to, matrix.numel());
    }
  }
}

}  // namespace bev
