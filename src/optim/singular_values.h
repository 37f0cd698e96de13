// The part of a matrix with the largest singular values, in host memory and in double.
#pragma once

#include <cstdint>
#include <vector>

namespace bev {

// Matrices whose shorter side has at most this length are decomposed exactly.
inline constexpr std::int64_t kExactSingularValues = 768;

// left [rows, rank] right [rank, columns] is the best approximation of a matrix; with its singular
// values S and vectors U, V: left = U sqrt(S), right = sqrt(S) V^T.
struct LeadingPart {
  std::vector<double> left, right;
};
// `matrix` [rows, columns] is row-major. Of large matrices an approximation by subspace iteration,
// always the same.
LeadingPart leading_part(const std::vector<double>& matrix, std::int64_t rows, std::int64_t columns,
                         std::int64_t rank);

}  // namespace bev
