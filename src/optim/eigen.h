// Small dense linear algebra in host memory, row-major and in double.
#pragma once

#include <cstdint>
#include <vector>

namespace bev {

// Replaces the symmetric matrix a [n, n] by its eigenvectors, as columns in descending order of
// their eigenvalues: Householder tridiagonalisation, then QL with implicit shifts.
void symmetric_eigenvectors(std::vector<double>& a, std::int64_t n);

// Replaces a [n, n] by the orthogonal factor of its QR decomposition (Householder).
void orthogonal_factor(std::vector<double>& a, std::int64_t n);

}  // namespace bev
