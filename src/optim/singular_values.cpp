#include "optim/singular_values.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/philox.h"
#include "optim/eigen.h"

namespace bev {

namespace {

using Matrix = std::vector<double>;

std::size_t index(std::int64_t row, std::int64_t columns, std::int64_t column = 0) {
  return static_cast<std::size_t>(row * columns + column);
}

// vectors m^T, with vectors as rows and m [rows, columns].
Matrix times_transposed(const Matrix& vectors, const Matrix& m, std::int64_t rows,
                        std::int64_t columns) {
  const std::int64_t count = std::ssize(vectors) / columns;
  Matrix out(static_cast<std::size_t>(count * rows));
  for (std::int64_t i = 0; i < rows; ++i) {
    const double* row = m.data() + index(i, columns);
    for (std::int64_t k = 0; k < count; ++k) {
      const double* vector = vectors.data() + index(k, columns);
      double sum = 0;
      for (std::int64_t j = 0; j < columns; ++j) sum += row[j] * vector[j];
      out[index(k, rows, i)] = sum;
    }
  }
  return out;
}

// vectors m.
Matrix times(const Matrix& vectors, const Matrix& m, std::int64_t rows, std::int64_t columns) {
  const std::int64_t count = std::ssize(vectors) / rows;
  Matrix out(static_cast<std::size_t>(count * columns));
  for (std::int64_t i = 0; i < rows; ++i) {
    const double* row = m.data() + index(i, columns);
    for (std::int64_t k = 0; k < count; ++k) {
      double* sum = out.data() + index(k, columns);
      const double factor = vectors[index(k, rows, i)];
      for (std::int64_t j = 0; j < columns; ++j) sum[j] += factor * row[j];
    }
  }
  return out;
}

// Makes the rows orthonormal (Gram-Schmidt, twice).
void orthonormalise(Matrix& vectors, std::int64_t size) {
  const std::int64_t count = std::ssize(vectors) / size;
  for (std::int64_t k = 0; k < count; ++k) {
    double* vector = vectors.data() + index(k, size);
    for (std::int64_t other = 0; other < 2 * k; ++other) {
      const double* before = vectors.data() + index(other % k, size);
      double dot = 0;
      for (std::int64_t j = 0; j < size; ++j) dot += vector[j] * before[j];
      for (std::int64_t j = 0; j < size; ++j) vector[j] -= dot * before[j];
    }
    double squares = 0;
    for (std::int64_t j = 0; j < size; ++j) squares += vector[j] * vector[j];
    const double factor = squares > 0 ? 1 / std::sqrt(squares) : 0;
    for (std::int64_t j = 0; j < size; ++j) vector[j] *= factor;
  }
}

// The first `count` eigenvectors of the symmetric matrix a [n, n], as rows.
Matrix leading_eigenvectors(Matrix a, std::int64_t n, std::int64_t count) {
  symmetric_eigenvectors(a, n);
  Matrix out(static_cast<std::size_t>(count * n));
  for (std::int64_t k = 0; k < count; ++k) {
    for (std::int64_t i = 0; i < n; ++i) out[index(k, n, i)] = a[index(i, n, k)];
  }
  return out;
}

// Orthonormal rows that span nearly what the leading right singular vectors do.
Matrix leading_space(const Matrix& m, std::int64_t rows, std::int64_t columns, std::int64_t count) {
  constexpr int kIterations = 8;
  Matrix space(static_cast<std::size_t>(count * columns));
  for (std::size_t i = 0; i < space.size(); ++i) {
    space[i] = static_cast<double>(mix_bits(1, i) >> 11) * 0x1p-52 - 1;
  }
  for (int i = 0; i < kIterations; ++i) {
    orthonormalise(space, columns);
    space = times(times_transposed(space, m, rows, columns), m, rows, columns);
  }
  orthonormalise(space, columns);
  return space;
}

}  // namespace

LeadingPart leading_part(const Matrix& matrix, std::int64_t rows, std::int64_t columns,
                         std::int64_t rank) {
  const std::int64_t shorter = std::min(rows, columns);
  BEV_CHECK(rank <= shorter, ErrorKind::kConfig, "--lora-init pissa: rank ", rank,
            " is above the sides of a weight [", rows, ", ", columns, "]; give a smaller one");
  constexpr std::int64_t kMore = 16;
  const bool exact = shorter <= kExactSingularValues;
  // Within the space of `basis` (all of it: empty) the problem is one of a small Gram matrix.
  Matrix right;  // right singular vectors as rows
  if (exact && columns <= rows) {
    Matrix gram(static_cast<std::size_t>(columns * columns));
    for (std::int64_t i = 0; i < rows; ++i) {
      const double* row = matrix.data() + index(i, columns);
      for (std::int64_t a = 0; a < columns; ++a) {
        for (std::int64_t b = 0; b < columns; ++b) gram[index(a, columns, b)] += row[a] * row[b];
      }
    }
    right = leading_eigenvectors(std::move(gram), columns, rank);
  } else if (exact) {
    Matrix left = leading_eigenvectors(times_transposed(matrix, matrix, rows, columns), rows, rank);
    right = times(left, matrix, rows, columns);
    orthonormalise(right, columns);
  } else {
    const std::int64_t count = std::min(rank + kMore, shorter);
    const Matrix space = leading_space(matrix, rows, columns, count);
    const Matrix seen = times_transposed(space, matrix, rows, columns);  // [count, rows]
    Matrix small = leading_eigenvectors(times_transposed(seen, seen, count, rows), count, rank);
    right = times(small, space, count, columns);
  }
  LeadingPart part{Matrix(static_cast<std::size_t>(rows * rank)), std::move(right)};
  const Matrix left = times_transposed(part.right, matrix, rows, columns);  // U S as rows
  for (std::int64_t k = 0; k < rank; ++k) {
    double squares = 0;
    for (std::int64_t i = 0; i < rows; ++i) {
      squares += left[index(k, rows, i)] * left[index(k, rows, i)];
    }
    const double root = std::sqrt(std::sqrt(squares));  // of the singular value
    for (std::int64_t i = 0; i < rows; ++i) {
      part.left[index(i, rank, k)] = root > 0 ? left[index(k, rows, i)] / root : 0;
    }
    for (std::int64_t j = 0; j < columns; ++j) part.right[index(k, columns, j)] *= root;
  }
  return part;
}

}  // namespace bev
