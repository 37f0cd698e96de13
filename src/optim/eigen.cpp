#include "optim/eigen.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.h"

namespace bev {

namespace {

// A symmetric matrix on its way to its eigenvectors: v becomes the product of all rotations, d the
// diagonal and e the off-diagonal. The algorithms are tred2 and tql2 of EISPACK.
class Eigenvectors {
 public:
  Eigenvectors(std::vector<double>& a, std::int64_t size)
      : v_(a), n_(size), d_(static_cast<std::size_t>(size)), e_(static_cast<std::size_t>(size)) {}

  void run() {
    for (std::int64_t j = 0; j < n_; ++j) d(j) = v(n_ - 1, j);
    for (std::int64_t i = n_ - 1; i > 0; --i) reduce_row(i);
    for (std::int64_t i = 0; i + 1 < n_; ++i) accumulate(i);
    for (std::int64_t j = 0; j < n_; ++j) {
      d(j) = v(n_ - 1, j);
      v(n_ - 1, j) = 0;
    }
    v(n_ - 1, n_ - 1) = 1;
    diagonalise();
    sort();
  }

 private:
  double& v(std::int64_t row, std::int64_t column) {
    return v_[static_cast<std::size_t>(row * n_ + column)];
  }
  double& d(std::int64_t i) { return d_[static_cast<std::size_t>(i)]; }
  double& e(std::int64_t i) { return e_[static_cast<std::size_t>(i)]; }

  // Householder reduction of row i to tridiagonal form.
  void reduce_row(std::int64_t i) {
    double scale = 0, h = 0;
    for (std::int64_t k = 0; k < i; ++k) scale += std::abs(d(k));
    if (scale == 0) {
      e(i) = d(i - 1);
      for (std::int64_t j = 0; j < i; ++j) {
        d(j) = v(i - 1, j);
        v(i, j) = v(j, i) = 0;
      }
      d(i) = 0;
      return;
    }
    for (std::int64_t k = 0; k < i; ++k) {
      d(k) /= scale;
      h += d(k) * d(k);
    }
    const double f = d(i - 1), g = f > 0 ? -std::sqrt(h) : std::sqrt(h);
    e(i) = scale * g;
    h -= f * g;
    d(i - 1) = f - g;
    for (std::int64_t j = 0; j < i; ++j) e(j) = 0;
    apply(i, h);
    d(i) = h;
  }

  // Applies the similarity transformation of row i to what is left.
  void apply(std::int64_t i, double h) {
    for (std::int64_t j = 0; j < i; ++j) {
      const double f = d(j);
      v(j, i) = f;
      double g = e(j) + v(j, j) * f;
      for (std::int64_t k = j + 1; k < i; ++k) {
        g += v(k, j) * d(k);
        e(k) += v(k, j) * f;
      }
      e(j) = g;
    }
    double sum = 0;
    for (std::int64_t j = 0; j < i; ++j) {
      e(j) /= h;
      sum += e(j) * d(j);
    }
    for (std::int64_t j = 0; j < i; ++j) e(j) -= sum / (h + h) * d(j);
    for (std::int64_t j = 0; j < i; ++j) {
      const double f = d(j), g = e(j);
      for (std::int64_t k = j; k < i; ++k) v(k, j) -= f * e(k) + g * d(k);
      d(j) = v(i - 1, j);
      v(i, j) = 0;
    }
  }

  // Accumulates the transformations.
  void accumulate(std::int64_t i) {
    v(n_ - 1, i) = v(i, i);
    v(i, i) = 1;
    const double h = d(i + 1);
    if (h != 0) {
      for (std::int64_t k = 0; k <= i; ++k) d(k) = v(k, i + 1) / h;
      for (std::int64_t j = 0; j <= i; ++j) {
        double g = 0;
        for (std::int64_t k = 0; k <= i; ++k) g += v(k, i + 1) * v(k, j);
        for (std::int64_t k = 0; k <= i; ++k) v(k, j) -= g * d(k);
      }
    }
    for (std::int64_t k = 0; k <= i; ++k) v(k, i + 1) = 0;
  }

  void diagonalise() {
    for (std::int64_t i = 1; i < n_; ++i) e(i - 1) = e(i);
    e(n_ - 1) = 0;
    double f = 0, largest = 0;
    for (std::int64_t l = 0; l < n_; ++l) {
      largest = std::max(largest, std::abs(d(l)) + std::abs(e(l)));
      const double least = std::numeric_limits<double>::epsilon() * largest;
      std::int64_t m = l;
      while (m < n_ - 1 && std::abs(e(m)) > least) ++m;
      constexpr int kMostSweeps = 200;
      for (int sweep = 0; m > l && sweep < kMostSweeps; ++sweep) {
        f += shift(l);
        rotate(l, m);
        if (std::abs(e(l)) <= least) break;
      }
      BEV_CHECK(std::isfinite(d(l)), ErrorKind::kInternal,
                "eigenvectors: the matrix holds NaN or Inf");
      d(l) += f;
      e(l) = 0;
    }
  }

  // Subtracts the implicit shift for eigenvalue l from the diagonal and returns it.
  double shift(std::int64_t l) {
    const double g = d(l), p = (d(l + 1) - g) / (2 * e(l));
    const double r = p < 0 ? -std::hypot(p, 1.0) : std::hypot(p, 1.0);
    d(l) = e(l) / (p + r);
    d(l + 1) = e(l) * (p + r);
    const double h = g - d(l);
    for (std::int64_t i = l + 2; i < n_; ++i) d(i) -= h;
    return h;
  }

  // One QL transformation of rows l to m.
  void rotate(std::int64_t l, std::int64_t m) {
    const double after = d(l + 1), beside = e(l + 1);
    double p = d(m), c = 1, c2 = 1, c3 = 1, s = 0, s2 = 0;
    for (std::int64_t i = m - 1; i >= l; --i) {
      c3 = c2;
      c2 = c;
      s2 = s;
      const double g = c * e(i), h = c * p, r = std::hypot(p, e(i));
      e(i + 1) = s * r;
      s = e(i) / r;
      c = p / r;
      p = c * d(i) - s * g;
      d(i + 1) = h + s * (c * g + s * d(i));
      for (std::int64_t k = 0; k < n_; ++k) {
        const double x = v(k, i + 1);
        v(k, i + 1) = s * v(k, i) + c * x;
        v(k, i) = c * v(k, i) - s * x;
      }
    }
    p = -s * s2 * c3 * beside * e(l) / after;
    e(l) = s * p;
    d(l) = c * p;
  }

  void sort() {
    std::vector<std::int64_t> order(d_.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, [&](std::int64_t a, std::int64_t b) { return d(a) > d(b); });
    const std::vector<double> from = v_;
    for (std::int64_t row = 0; row < n_; ++row) {
      for (std::int64_t column = 0; column < n_; ++column) {
        v(row, column) =
            from[static_cast<std::size_t>(row * n_ + order[static_cast<std::size_t>(column)])];
      }
    }
  }

  std::vector<double>& v_;
  std::int64_t n_;
  std::vector<double> d_, e_;
};

}  // namespace

void symmetric_eigenvectors(std::vector<double>& a, std::int64_t n) {
  if (n == 0) return;
  if (n == 1) {
    a[0] = 1;
    return;
  }
  Eigenvectors(a, n).run();
}

void orthogonal_factor(std::vector<double>& a, std::int64_t n) {
  const auto size = static_cast<std::size_t>(n);
  const auto at = [&](std::vector<double>& of, std::int64_t row, std::int64_t column) -> double& {
    return of[static_cast<std::size_t>(row * n + column)];
  };
  // Column j of `mirrors` is the j-th Householder vector, of length sqrt(2).
  std::vector<double> mirrors(size * size), products(size);
  const auto reflect = [&](std::vector<double>& x, std::int64_t j) {
    std::ranges::fill(products, 0);
    for (std::int64_t row = j; row < n; ++row) {
      for (std::int64_t c = 0; c < n; ++c) {
        products[static_cast<std::size_t>(c)] += at(mirrors, row, j) * at(x, row, c);
      }
    }
    for (std::int64_t row = j; row < n; ++row) {
      for (std::int64_t c = 0; c < n; ++c) {
        at(x, row, c) -= at(mirrors, row, j) * products[static_cast<std::size_t>(c)];
      }
    }
  };
  for (std::int64_t j = 0; j < n; ++j) {
    double square = 0;
    for (std::int64_t row = j; row < n; ++row) square += at(a, row, j) * at(a, row, j);
    if (square == 0) continue;
    const double length = std::sqrt(square),
                 head = at(a, j, j) + std::copysign(length, at(a, j, j));
    const double scale = std::sqrt(2 / (square - at(a, j, j) * at(a, j, j) + head * head));
    for (std::int64_t row = j; row < n; ++row) {
      at(mirrors, row, j) = scale * (row == j ? head : at(a, row, j));
    }
    reflect(a, j);
  }
  std::ranges::fill(a, 0);
  for (std::int64_t i = 0; i < n; ++i) at(a, i, i) = 1;
  for (std::int64_t j = n - 1; j >= 0; --j) reflect(a, j);
}

}  // namespace bev
