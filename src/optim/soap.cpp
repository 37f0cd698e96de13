// SOAP: Adam in the eigenbasis of Shampoo's preconditioner (Vyas et al., 2024), in the variant of
// NVIDIA's emerging-optimizers: the basis is refined by one orthogonal iteration in every step, and
// the first moment is kept in it. Computes in host memory.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/gemm.h"
#include "optim/eigen.h"
#include "optim/matrix_rule.h"

namespace bev {

namespace {

enum State { kExpAvg, kExpAvgSq, kLeft, kRight, kLeftBasis, kRightBasis };

// Memory for the products of an update.
struct Work {
  Tensor left, turned, average;  // [R, C]
  Tensor square;                 // [R, R] or [C, C]

  Work(Context& ctx, const View& matrix)
      : left(ctx.allocate(matrix.dtype, matrix.shape, "matrix update")),
        turned(ctx.allocate(matrix.dtype, matrix.shape, "matrix update")),
        average(ctx.allocate(matrix.dtype, matrix.shape, "matrix update")) {
    const std::int64_t size = std::max(matrix.shape[0], matrix.shape[1]);
    square = ctx.allocate(matrix.dtype, {size, size}, "matrix update");
  }
};

void multiply(Context& ctx, const View& a, bool transpose_a, const View& b, bool transpose_b,
              const View& c) {
  ctx.kernels.gemm.gemm(
      ctx.stream, {.a = a, .b = b, .c = c, .transpose_a = transpose_a, .transpose_b = transpose_b});
}

// Calls body with a value of the dtype of states, f32 or f64.
template <class Body>
void visit_wide(Dtype dtype, const Body& body) {
  if (dtype == Dtype::kF64) return body(double{});
  body(float{});
}

std::vector<double> doubles(const View& x) {
  std::vector<double> out(static_cast<std::size_t>(x.numel()));
  visit_wide(x.dtype, [&](auto type) {
    const auto* from = x.as<decltype(type)>();
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = double{from[i]};
  });
  return out;
}

void store(const std::vector<double>& from, const View& x) {
  visit_wide(x.dtype, [&](auto type) {
    auto* to = x.as<decltype(type)>();
    for (std::size_t i = 0; i < from.size(); ++i) to[i] = static_cast<decltype(type)>(from[i]);
  });
}

// The eigenbasis of one side of a matrix.
class Basis {
 public:
  Basis(const View& factor, const View& basis)
      : factor_(factor), basis_(basis), size_(factor.shape[0]) {}

  // Sorts the basis by its approximate eigenvalues, the largest first, refines it, and returns the
  // order.
  std::vector<std::int64_t> refine(Context& ctx, const Work& work, bool first) const {
    std::vector<std::int64_t> order(static_cast<std::size_t>(size_));
    std::iota(order.begin(), order.end(), 0);
    if (first) {
      std::vector<double> vectors = doubles(factor_);
      symmetric_eigenvectors(vectors, size_);
      store(vectors, basis_);
      return order;
    }
    const View turned = work.square.view().flat().rows(0, size_ * size_).reshape({size_, size_});
    multiply(ctx, factor_, false, basis_, false, turned);
    const std::vector<double> after = doubles(turned), before = doubles(basis_);
    std::vector<double> values(order.size());
    for (std::size_t i = 0; i < after.size(); ++i) values[i % order.size()] += before[i] * after[i];
    std::ranges::stable_sort(order, [&](std::int64_t a, std::int64_t b) {
      return values[static_cast<std::size_t>(a)] > values[static_cast<std::size_t>(b)];
    });
    std::vector<double> next(after.size());
    for (std::size_t i = 0; i < next.size(); ++i) {
      const std::size_t row = i / order.size(), column = i % order.size();
      next[i] = after[row * order.size() + static_cast<std::size_t>(order[column])];
    }
    orthogonal_factor(next, size_);
    store(next, basis_);
    return order;
  }

 private:
  View factor_, basis_;
  std::int64_t size_;
};

class Soap final : public MatrixRule {
 public:
  explicit Soap(const OptimConfig& config)
      : beta1_(config.adam_beta1),
        beta2_(config.adam_beta2),
        epsilon_(config.adam_eps),
        shampoo_beta_(config.soap.shampoo_beta) {}

  Dtype dtype(Dtype model) const override { return wide_of(model); }
  std::vector<MatrixStateSpec> states(const MatrixBlock& block) const override {
    const std::int64_t rows = block.rows, columns = block.columns;
    return {{"exp_avg", {rows, columns}}, {"exp_avg_sq", {rows, columns}},
            {"L", {rows, rows}},          {"R", {columns, columns}},
            {"Q_L", {rows, rows}},        {"Q_R", {columns, columns}}};
  }

  void update(Context& ctx, const OwnedMatrix& matrix, const View& local) const override {
    WholeMatrix whole = gather_whole(ctx, matrix.block, matrix.tensor, local);
    const Work work(ctx, whole.view);
    if (ctx.step->skip != 0) return;
    std::vector<View> states;
    std::size_t index = 0;
    for (const MatrixStateSpec& spec : this->states(matrix.block)) {
      states.push_back(matrix.states[index++].reshape(spec.shape));
    }
    const auto step = static_cast<double>(ctx.step->update - matrix.updates_before);
    precondition(ctx, work, whole.view, states, step, epsilon_ * matrix.block.param->eps_mult);
    take_part(ctx, matrix.block, matrix.tensor, whole.view, local);
  }

 private:
  // beta such that the moving average has no bias after `step` updates.
  static double unbiased(double beta, double step) {
    return 1 - (1 - beta) / (1 - std::pow(beta, step));
  }

  void add_gram(Context& ctx, const View& gradient, bool right, double beta,
                const View& factor) const {
    ctx.kernels.gemm.gemm(ctx.stream, {.a = gradient,
                                       .b = gradient,
                                       .c = factor,
                                       .transpose_a = right,
                                       .transpose_b = !right,
                                       .alpha = 1 - beta,
                                       .beta = beta});
  }

  static void to_basis(Context& ctx, const Work& work, const View& x,
                       const std::vector<View>& states, const View& out) {
    multiply(ctx, states[kLeftBasis], true, x, false, work.left);
    multiply(ctx, work.left, false, states[kRightBasis], false, out);
  }
  static void from_basis(Context& ctx, const Work& work, const View& x,
                         const std::vector<View>& states, const View& out) {
    multiply(ctx, states[kLeftBasis], false, x, false, work.left);
    multiply(ctx, work.left, false, states[kRightBasis], true, out);
  }

  void refine_bases(Context& ctx, const Work& work, const std::vector<View>& states,
                    bool first) const {
    from_basis(ctx, work, states[kExpAvg], states, work.average);
    const auto rows = Basis(states[kLeft], states[kLeftBasis]).refine(ctx, work, first);
    const auto columns = Basis(states[kRight], states[kRightBasis]).refine(ctx, work, first);
    const std::vector<double> squares = doubles(states[kExpAvgSq]);
    std::vector<double> sorted(squares.size());
    for (std::size_t i = 0; i < sorted.size(); ++i) {
      const auto row = static_cast<std::size_t>(rows[i / columns.size()]);
      const auto column = static_cast<std::size_t>(columns[i % columns.size()]);
      sorted[i] = squares[row * columns.size() + column];
    }
    store(sorted, states[kExpAvgSq]);
    to_basis(ctx, work, work.average, states, states[kExpAvg]);
  }

  // Replaces the gradient by its update.
  void precondition(Context& ctx, const Work& work, const View& gradient,
                    const std::vector<View>& states, double step, double epsilon) const {
    const double beta = unbiased(shampoo_beta_, step);
    add_gram(ctx, gradient, false, beta, states[kLeft]);
    add_gram(ctx, gradient, true, beta, states[kRight]);
    refine_bases(ctx, work, states, step == 1);
    to_basis(ctx, work, gradient, states, work.turned);
    visit_wide(gradient.dtype,
               [&](auto type) { adam<decltype(type)>(states, work.turned, step, epsilon); });
    from_basis(ctx, work, work.turned, states, gradient);
  }

  template <class T>
  void adam(const std::vector<View>& states, const View& x, double step, double epsilon) const {
    T *m = states[kExpAvg].as<T>(), *v = states[kExpAvgSq].as<T>(), *values = x.as<T>();
    const double of_m = 1 - std::pow(beta1_, step), of_v = 1 - std::pow(beta2_, step);
    for (std::int64_t i = 0; i < x.numel(); ++i) {
      const T g = values[i];
      m[i] += static_cast<T>(1 - beta1_) * (g - m[i]);
      v[i] += static_cast<T>(1 - beta2_) * (g * g - v[i]);
      values[i] = static_cast<T>(m[i] / of_m / (std::sqrt(v[i] / of_v) + epsilon));
    }
  }

  double beta1_, beta2_, epsilon_, shampoo_beta_;
};

}  // namespace

std::unique_ptr<MatrixRule> make_soap(const OptimConfig& config) {
  return std::make_unique<Soap>(config);
}

}  // namespace bev
