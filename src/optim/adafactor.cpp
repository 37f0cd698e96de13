// Adafactor (Shazeer and Stern, 2018) as in torch.optim: second moments of a matrix are kept as
// means over its rows and columns. Computes in host memory.
#include <algorithm>
#include <cmath>
#include <limits>

#include "optim/matrix_rule.h"

namespace bev {

namespace {

// A matrix in host memory with its states.
template <class T>
struct Factored {
  std::int64_t rows, columns;
  T* values;  // the gradient, then the update
  T *by_row, *by_column;

  // by_row and by_column move to the means of squares by `rest`.
  void add_means(double rest) const {
    const auto moved = [&](T& mean, double sum, std::int64_t count) {
      mean += static_cast<T>(rest) * (static_cast<T>(sum / static_cast<double>(count)) - mean);
    };
    std::vector<double> columns_sum(static_cast<std::size_t>(columns));
    for (std::int64_t r = 0; r < rows; ++r) {
      double sum = 0;
      for (std::int64_t c = 0; c < columns; ++c) {
        const double g = values[r * columns + c];
        sum += g * g;
        columns_sum[static_cast<std::size_t>(c)] += g * g;
      }
      moved(by_row[r], sum, columns);
    }
    for (std::int64_t c = 0; c < columns; ++c) {
      moved(by_column[c], columns_sum[static_cast<std::size_t>(c)], rows);
    }
  }
  // Gradient over the root of its estimated second moment.
  void divide(double eps1) const {
    double mean = 0;
    for (std::int64_t r = 0; r < rows; ++r) mean += by_row[r];
    mean = std::max(mean / static_cast<double>(rows), eps1);
    for (std::int64_t i = 0; i < rows * columns; ++i) {
      const double estimate = double{by_row[i / columns]} * by_column[i % columns] / mean;
      values[i] = static_cast<T>(values[i] / std::sqrt(std::max(estimate, eps1 * eps1)));
    }
  }
};

template <class T>
void divide_vector(T* values, T* variance, std::int64_t count, double rest, double eps1) {
  for (std::int64_t i = 0; i < count; ++i) {
    variance[i] += static_cast<T>(rest) * (values[i] * values[i] - variance[i]);
    const double estimate = std::max(double{variance[i]}, eps1 * eps1);
    values[i] = static_cast<T>(values[i] / std::sqrt(estimate));
  }
}

template <class T>
double root_mean_square(const T* values, std::int64_t count) {
  double sum = 0;
  for (std::int64_t i = 0; i < count; ++i) sum += double{values[i]} * values[i];
  return std::sqrt(sum / static_cast<double>(count));
}

class Adafactor final : public MatrixRule {
 public:
  explicit Adafactor(const AdafactorConfig& config) : config_(config) {}

  Dtype dtype(Dtype model) const override { return wide_of(model); }
  bool needs_weights() const override { return true; }
  bool update_has_lr() const override { return true; }
  std::vector<MatrixStateSpec> states(const MatrixBlock& block) const override {
    if (block.vector) return {{"variance", {block.columns}}};
    return {{"row_var", {block.rows}}, {"col_var", {block.columns}}};
  }

  void update(Context& ctx, const OwnedMatrix& matrix, const View& local) const override {
    WholeMatrix whole = gather_whole(ctx, matrix.block, matrix.tensor, local);
    WholeMatrix weights = gather_whole(ctx, matrix.block, matrix.tensor, matrix.weights);
    if (ctx.step->skip != 0) return;
    if (whole.view.dtype == Dtype::kF64) {
      replace<double>(ctx, matrix, whole.view, weights.view);
    } else {
      replace<float>(ctx, matrix, whole.view, weights.view);
    }
    take_part(ctx, matrix.block, matrix.tensor, whole.view, local);
  }

 private:
  template <class T>
  void replace(Context& ctx, const OwnedMatrix& matrix, const View& whole,
               const View& weights) const {
    const StepState& state = *ctx.step;
    const Param& param = *matrix.block.param;
    const std::int64_t count = whole.numel();
    T* values = whole.as<T>();
    const auto step = static_cast<double>(state.update - matrix.updates_before);
    const double rest = std::pow(step, config_.beta2_decay);
    const double least = config_.eps1 > 0 ? config_.eps1 : std::numeric_limits<T>::epsilon();
    if (matrix.block.vector) {
      divide_vector(values, matrix.states[0].as<T>(), count, rest, least);
    } else {
      const Factored<T> factored{matrix.block.rows, matrix.block.columns, values,
                                 matrix.states[0].as<T>(), matrix.states[1].as<T>()};
      factored.add_means(rest);
      factored.divide(least);
    }
    const double lr = state.lr.values[param.lr_index] * param.lr_mult;
    const double size = std::max(config_.eps2, root_mean_square(weights.as<T>(), count));
    const double clipped = std::max(1.0, root_mean_square(values, count) / config_.clip_threshold);
    const T rate = static_cast<T>(size * std::min(lr, 1 / std::sqrt(step)) / clipped);
    for (std::int64_t i = 0; i < count; ++i) values[i] *= rate;
  }

  AdafactorConfig config_;
};

}  // namespace

std::unique_ptr<MatrixRule> make_adafactor(const OptimConfig& config) {
  return std::make_unique<Adafactor>(config.adafactor);
}

}  // namespace bev
