#include "kernels/activation.h"

#include <gtest/gtest.h>

#include "tests/backend_cpu/kernel_fixture.h"

namespace bev {
namespace {

using kernel_test::Buffer;
using kernel_test::epsilon_of;
using kernel_test::expect_near;
using kernel_test::kFloats;
using kernel_test::numbers;
using kernel_test::on_every_level;
using kernel_test::random_buffer;

constexpr Activation kKinds[] = {
    Activation::kGelu,        Activation::kGeluTanh,  Activation::kSilu, Activation::kRelu,
    Activation::kSquaredRelu, Activation::kQuickGelu, Activation::kTanh};

double activate(Activation kind, double x) {
  switch (kind) {
    case Activation::kGelu:
      return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
    case Activation::kGeluTanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::kSilu:
      return x / (1 + std::exp(-x));
    case Activation::kRelu:
      return std::max(x, 0.0);
    case Activation::kSquaredRelu:
      return x > 0 ? x * x : 0;
    case Activation::kQuickGelu:
      return x / (1 + std::exp(-1.702 * x));
    case Activation::kTanh:
      return std::tanh(x);
    case Activation::kXielu:  // an op of its own
      break;
  }
  return 0;
}

// Finite difference with Richardson extrapolation: an independent reference, accurate to 1e-9.
double slope(Activation kind, double x) {
  if (kind == Activation::kRelu) return x > 0 ? 1 : 0;
  if (kind == Activation::kSquaredRelu) return x > 0 ? 2 * x : 0;
  const auto difference = [&](double step) {
    return (activate(kind, x + step) - activate(kind, x - step)) / (2 * step);
  };
  return (4 * difference(5e-4) - difference(1e-3)) / 3;
}

double tolerance(Dtype dtype) { return dtype == Dtype::kF64 ? 1e-9 : 16 * epsilon_of(dtype); }

struct Size {
  std::int64_t rows, columns;
};
constexpr Size kSizes[] = {{1, 1}, {3, 7}, {5, 300}, {1, 9000}, {70, 65}, {0, 4}, {4, 0}};

// Small values, then some large and special ones; all rounded to the dtype.
Buffer inputs(Dtype dtype, Shape shape, std::uint64_t key) {
  std::vector<double> values = numbers(shape.numel(), key, 6);
  const std::vector<double> special = {0, -0.0, 30, -30, 90, -90, 1e-6, -1e-6};
  if (values.size() >= 2 * special.size()) {
    std::copy(special.begin(), special.end(), values.begin());
  }
  return Buffer(dtype, shape, values);
}

TEST(Activation, PlainMatchesTheDefinition) {
  for (Activation kind : kKinds) {
    for (Size size : kSizes) {
      for (Dtype dtype : kFloats) {
        SCOPED_TRACE(testing::Message() << "kind " << static_cast<int>(kind) << ", " << size.rows
                                        << " x " << size.columns << ", " << name_of(dtype));
        Buffer x = inputs(dtype, {size.rows, size.columns}, 1);
        Buffer dy = random_buffer(dtype, {size.rows, size.columns}, 2);
        const std::vector<double> xs = x.values(), dys = dy.values();
        std::vector<double> y, dx;
        for (std::size_t i = 0; i < xs.size(); ++i) {
          y.push_back(activate(kind, xs[i]));
          dx.push_back(dys[i] * slope(kind, xs[i]));
        }
        on_every_level([&](const Kernels& kernels, const Stream& stream) {
          Buffer out(dtype, {size.rows, size.columns}), grad = x;
          kernels.activation.forward(stream, {x.view(), out.view(), kind, false});
          // dx aliases x here.
          kernels.activation.backward(
              stream, {.dy = dy.view(), .x = grad.view(), .dx = grad.view(), .kind = kind});
          expect_near(out.values(), y, tolerance(dtype));
          expect_near(grad.values(), dx, 2 * tolerance(dtype));
          EXPECT_TRUE(out.guards_intact() && grad.guards_intact());
          return out.bits() + grad.bits();
        });
      }
    }
  }
}

TEST(Activation, GatedMatchesTheDefinition) {
  for (Activation kind : kKinds) {
    for (Size size : kSizes) {
      for (Dtype dtype : kFloats) {
        SCOPED_TRACE(testing::Message() << "kind " << static_cast<int>(kind) << ", " << size.rows
                                        << " x " << size.columns << ", " << name_of(dtype));
        Buffer x = inputs(dtype, {size.rows, 2 * size.columns}, 1);
        Buffer dy = random_buffer(dtype, {size.rows, size.columns}, 2);
        const std::vector<double> xs = x.values(), dys = dy.values();
        std::vector<double> y, dx(xs.size());
        const auto columns = static_cast<std::size_t>(size.columns);
        for (std::size_t i = 0; i < dys.size(); ++i) {
          const std::size_t at = i / columns * 2 * columns + i % columns;
          const double gate = xs[at], up = xs[at + columns];
          y.push_back(activate(kind, gate) * up);
          dx[at] = dys[i] * up * slope(kind, gate);
          dx[at + columns] = dys[i] * activate(kind, gate);
        }
        on_every_level([&](const Kernels& kernels, const Stream& stream) {
          Buffer out(dtype, {size.rows, size.columns}), in_place = x;
          Buffer grad(dtype, {size.rows, 2 * size.columns});
          kernels.activation.forward(stream, {x.view(), out.view(), kind, true});
          kernels.activation.backward(
              stream,
              {.dy = dy.view(), .x = x.view(), .dx = grad.view(), .kind = kind, .gated = true});
          kernels.activation.backward(stream, {.dy = dy.view(),
                                               .x = in_place.view(),
                                               .dx = in_place.view(),
                                               .kind = kind,
                                               .gated = true});
          expect_near(out.values(), y, tolerance(dtype));
          expect_near(grad.values(), dx, 2 * tolerance(dtype));
          EXPECT_TRUE(grad.bits() == in_place.bits());
          EXPECT_TRUE(out.guards_intact() && grad.guards_intact());
          return out.bits() + grad.bits();
        });
      }
    }
  }
}

TEST(Activation, NanStaysNan) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (Activation kind : kKinds) {
    for (Dtype dtype : kFloats) {
      Buffer x(dtype, {1, 3}, {1, nan, 2});
      on_every_level([&](const Kernels& kernels, const Stream& stream) {
        Buffer y(dtype, {1, 3});
        kernels.activation.forward(stream, {x.view(), y.view(), kind, false});
        EXPECT_FALSE(std::isnan(y.values()[0]));
        EXPECT_TRUE(std::isnan(y.values()[1]));
        EXPECT_FALSE(std::isnan(y.values()[2]));
        return y.bits();
      });
    }
  }
}

}  // namespace
}  // namespace bev
