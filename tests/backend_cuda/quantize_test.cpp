// FP8 kernels: quantised values are bitwise the CPU's, GEMMs agree up to the order of sums.
#include "kernels/activation.h"
#include "kernels/norm.h"
#include "tests/backend_cuda/quantize_rig.h"

namespace bev::cuda_test {
namespace {

class CudaQuantize : public QuantizeRig {
 protected:
  // Quantises what `make(view)` writes, and the same fused with its producer (`maker`); compares
  // both.
  template <class Make>
  void expect_made(QuantizeRequest request, Dtype dtype, const Shape& shape,
                   const QuantizeMaker& maker, const Make& make) {
    Tensor numbers(device_arena(), Dtype::kF32, {3}, "test");
    cuda().fill(cuda_stream(), numbers, 0);
    auto* at = numbers.as<float>();
    Tensor written(device_arena(), dtype, shape, "test");
    make(written.view());
    cuda().quantize.amax(cuda_stream(), written, at);
    request.amax = at;
    request.seen = at + 1;
    request.x = written;
    Quantized expected = zeroed(cuda_tools(), request);
    request.seen = at + 2;
    request.x = Tensor::unwritten(dtype, shape);
    request.maker = maker;
    Quantized made = zeroed(cuda_tools(), request);
    EXPECT_EQ(bytes_of(made.rows, true), bytes_of(expected.rows, true));
    EXPECT_EQ(bytes_of(made.row_scales, true), bytes_of(expected.row_scales, true));
    EXPECT_EQ(bytes_of(made.columns, true), bytes_of(expected.columns, true));
    EXPECT_EQ(bytes_of(made.column_scales, true), bytes_of(expected.column_scales, true));
    std::vector<double> seen = download(numbers);
    EXPECT_EQ(seen[2], seen[1]);
    EXPECT_EQ(seen[2], seen[0]);
    EXPECT_GT(seen[2], 0);
  }
  void check_made(const Fp8Recipe& recipe, Dtype dtype, const Shape& shape) {
    QuantizeRequest request;
    request.recipe = recipe;
    Tensor x = random(dtype, shape, 2).device, weight = random(dtype, {shape[1]}).device;
    Tensor bias = random(dtype, {shape[1]}).device;
    Tensor mean(device_arena(), Dtype::kF32, {shape[0]}, "test");
    Tensor rstd(device_arena(), Dtype::kF32, {shape[0]}, "test");
    for (bool center : {false, true}) {
      NormForwardArgs norm;
      norm.x = x;
      norm.weight = weight;
      norm.offset = 1;
      norm.rstd = rstd;
      if (center) norm.mean = mean;
      if (center) norm.bias = bias;
      expect_made(request, dtype, shape, {&norm}, [&](const View& y) {
        norm.y = y;
        cuda().norm.forward(cuda_stream(), norm);
      });
    }
    for (int kind = 0; kind < 6; ++kind) {
      for (bool gated : {false, true}) {
        SCOPED_TRACE(concat("activation ", kind, gated ? ", gated" : ""));
        Shape wide{shape[0], gated ? 2 * shape[1] : shape[1]};
        Tensor in = random(dtype, wide, 3).device;
        GateLimits limits{kind == 2 ? 1.5 : 0.0, kind == 2 ? 1.0 : 0.0};
        ActivationForwardArgs forward{in, {}, static_cast<Activation>(kind), gated, limits};
        request.role = Fp8Role::kInput;
        expect_made(request, dtype, shape, {nullptr, &forward}, [&](const View& y) {
          forward.y = y;
          cuda().activation.forward(cuda_stream(), forward);
        });
        ActivationBackwardArgs backward{x, in, {}, static_cast<Activation>(kind), gated, limits};
        request.role = Fp8Role::kGradient;
        expect_made(request, dtype, wide, {nullptr, nullptr, &backward}, [&](const View& dx) {
          backward.dx = dx;
          cuda().activation.backward(cuda_stream(), backward);
        });
      }
    }
  }
};

const std::vector<double> kAwkward = {0.0,  -0.0,   1e-30, -1e-30, 3e38,     -3e38,
                                      1e-3, 0.0625, 448,   464,    -57344.0, 61440.0};

TEST_F(CudaQuantize, GivesTheCpusBits) {
  for (Fp8Scaling scaling :
       {Fp8Scaling::kTensorwise, Fp8Scaling::kBlockwise, Fp8Scaling::kNvfp4, Fp8Scaling::kMxfp4}) {
    for (Fp8Role role : {Fp8Role::kInput, Fp8Role::kWeight, Fp8Role::kGradient}) {
      for (Dtype dtype : {Dtype::kF32, Dtype::kBf16, Dtype::kF16}) {
        for (Shape shape : {Shape{1, 128}, Shape{128, 256}, Shape{131, 384}, Shape{700, 128},
                            Shape{72, 576}, Shape{576, 160}, Shape{9, 4256}}) {
          if (scaling == Fp8Scaling::kTensorwise) shape[1] -= 112;
          SCOPED_TRACE(concat(static_cast<int>(scaling), ", role ", static_cast<int>(role), ", ",
                              name_of(dtype), " ", shape));
          Pair x = pair(dtype, shape, 0.3, dtype == Dtype::kF16 ? std::vector<double>{} : kAwkward);
          Tensor amax(host_arena(), Dtype::kF32, {2}, "test");
          Tensor there(device_arena(), Dtype::kF32, {2}, "test");
          auto* numbers = amax.as<float>();
          numbers[1] = 0.1f;
          cuda().device.upload(cuda_stream(), numbers, there);
          cpu().quantize.amax(cpu_stream(), x.host, numbers);
          cuda().quantize.amax(cuda_stream(), x.device, there.as<float>());
          QuantizeRequest request;
          request.recipe = {scaling, Fp8Format::kE5m2, 1, true};
          request.role = role;
          request.x = x.host;
          request.amax = numbers;
          bool in_four_bits = is_emulated(block_of(request.recipe, role));
          if (!in_four_bits) request.seen = numbers + 1;
          Quantized host = zeroed(cpu_tools(), request);
          request.x = x.device;
          request.amax = there.as<float>();
          if (!in_four_bits) request.seen = there.as<float>() + 1;
          Quantized device = zeroed(cuda_tools(), request);
          expect_same(amax, there, "largest numbers");
          expect_same(host.rows, device.rows, "rows");
          expect_same(host.row_scales, device.row_scales, "scales of rows");
          expect_same(host.columns, device.columns, "columns");
          expect_same(host.column_scales, device.column_scales, "scales of columns");
          if (scaling == Fp8Scaling::kTensorwise) {
            cuda().fill(cuda_stream(), device.columns, 9);
            cuda().quantize.transpose(cuda_stream(), device.rows, device.columns);
            expect_same(host.columns, device.columns, "rows turned");
          }
          if (!in_four_bits) request.seen = nullptr;
          request.columns = false;
          Quantized rows = zeroed(cuda_tools(), request);
          expect_same(host.rows, rows.rows, "rows alone");
          expect_same(host.row_scales, rows.row_scales, "scales of rows alone");
          request.rows = false;
          request.columns = true;
          Quantized turned = zeroed(cuda_tools(), request);
          expect_same(host.columns, turned.columns, "columns alone");
          expect_same(host.column_scales, turned.column_scales, "scales of columns alone");
        }
      }
    }
  }
}

TEST_F(CudaQuantize, WhatIsNotFiniteIsSeen) {
  double infinity = std::numeric_limits<double>::infinity();
  double nan = std::numeric_limits<double>::quiet_NaN();
  for (const std::vector<double>& bad :
       {std::vector<double>{infinity, 1, -infinity}, {nan, 2, -nan}}) {
    Pair x = pair(Dtype::kBf16, {20, 128}, 1, bad);
    for (Fp8Scaling scaling : {Fp8Scaling::kTensorwise, Fp8Scaling::kBlockwise}) {
      Tensor amax(host_arena(), Dtype::kF32, {1}, "test");
      Tensor there(device_arena(), Dtype::kF32, {1}, "test");
      cpu().quantize.amax(cpu_stream(), x.host, amax.as<float>());
      cuda().quantize.amax(cuda_stream(), x.device, there.as<float>());
      QuantizeRequest request;
      request.recipe.scaling = scaling;
      request.x = x.host;
      request.amax = amax.as<float>();
      Quantized host = zeroed(cpu_tools(), request);
      request.x = x.device;
      request.amax = there.as<float>();
      Quantized device = zeroed(cuda_tools(), request);
      expect_same(host.rows, device.rows, "rows");
      expect_same(host.columns, device.columns, "columns");
      EXPECT_EQ(std::isnan(download(device.row_scales)[0]), std::isinf(bad[0]));
    }
  }
}

// Forward, dgrad and wgrad of a linear layer, with token counts that do not fill a block.
TEST_F(CudaQuantize, ProductsAreTheCpus) {
  if (!test::gpu_has_arch(90)) GTEST_SKIP() << "no tensor cores for FP8";
  for (Fp8Scaling scaling : {Fp8Scaling::kTensorwise, Fp8Scaling::kBlockwise, Fp8Scaling::kNvfp4}) {
    for (std::int64_t tokens : {16, 36, 128, 300}) {
      for (Dtype out : {Dtype::kBf16, Dtype::kF16, Dtype::kF32}) {
        SCOPED_TRACE(concat(static_cast<int>(scaling), ", ", tokens, " tokens, ", name_of(out)));
        bool ragged = scaling != Fp8Scaling::kNvfp4 && tokens != 128;
        std::int64_t inside = ragged ? 208 : 256, outside = ragged ? 576 : 384;
        Quantized host[3], device[3];
        Shape shapes[3] = {{tokens, inside}, {outside, inside}, {tokens, outside}};
        for (int i = 0; i < 3; ++i) {
          Pair x = pair(out, shapes[i], 0.5);
          Tensor amax(host_arena(), Dtype::kF32, {1}, "test");
          Tensor there(device_arena(), Dtype::kF32, {1}, "test");
          cpu().quantize.amax(cpu_stream(), x.host, amax.as<float>());
          cuda().quantize.amax(cuda_stream(), x.device, there.as<float>());
          QuantizeRequest request;
          request.recipe = {scaling, Fp8Format::kE5m2, 0, true};
          request.role = static_cast<Fp8Role>(i);
          request.x = x.host;
          request.amax = amax.as<float>();
          host[i] = quantize(cpu_tools(), request);
          request.x = x.device;
          request.amax = there.as<float>();
          device[i] = quantize(cuda_tools(), request);
        }
        auto compare = [&](const Shape& shape, Dtype dtype, double beta, bool bias, auto factors) {
          Pair c = pair(dtype, shape, 1), b = pair(dtype, {shape[1]}, 1);
          auto args = [&](const Quantized* from, const Tensor& to, const Tensor& added) {
            auto [left, right] = factors(from);
            return ScaledGemmArgs{left, right, to, beta, bias ? added.view() : View{}, false};
          };
          cpu().quantize.scaled_gemm(cpu_stream(), args(host, c.host, b.host));
          cuda().quantize.scaled_gemm(cuda_stream(), args(device, c.device, b.device));
          Twin result{Tensor(host_arena(), Dtype::kF64, shape, "test"), c.device};
          cpu().cast(cpu_stream(), c.host, result.exact);
          // Tensor cores accumulate FP8 products with fewer bits than f32.
          EXPECT_LT(error(result), std::max(tolerance(dtype), 5e-4)) << to_text(shape);
        };
        compare({tokens, outside}, out, 0, true, [](const Quantized* from) {
          return std::pair{from[0].by_rows(), from[1].by_rows()};
        });
        compare({tokens, inside}, out, 0, false, [](const Quantized* from) {
          return std::pair{from[2].by_rows(), from[1].by_columns()};
        });
        for (double beta : {0.0, 1.0}) {
          compare({outside, inside}, Dtype::kF32, beta, false, [](const Quantized* from) {
            return std::pair{from[2].by_columns(), from[0].by_columns()};
          });
        }
      }
    }
  }
}

// Vectorised and unvectorised rows, and more rows than blocks.
TEST_F(CudaQuantize, NormsAndActivationsFindTheLargestNumberTheyWrite) {
  for (Dtype dtype : {Dtype::kF32, Dtype::kBf16, Dtype::kF16}) {
    for (const Shape& shape : {Shape{3, 40}, Shape{1000, 4096}, Shape{70, 13}}) {
      SCOPED_TRACE(concat(name_of(dtype), " ", shape));
      Twin x = random(dtype, shape, 3), weight = random(dtype, {shape[1]});
      Twin rstd = poisoned(Dtype::kF32, {shape[0]});
      Tensor y(device_arena(), dtype, shape, "test");
      Tensor found(device_arena(), Dtype::kF32, {2}, "test");
      auto expect_found = [&](const Tensor& written) {
        cuda().quantize.amax(cuda_stream(), written, found.as<float>() + 1);
        std::vector<double> numbers = download(found);
        EXPECT_EQ(numbers[0], numbers[1]);
        EXPECT_GT(numbers[0], 0);
        cuda().fill(cuda_stream(), found, 0);
      };
      cuda().fill(cuda_stream(), found, 0);
      NormForwardArgs norm;
      norm.x = x.device;
      norm.y = y;
      norm.weight = weight.device;
      norm.rstd = rstd.device;
      norm.amax = found.as<float>();
      cuda().norm.forward(cuda_stream(), norm);
      expect_found(y);
      NormBackwardArgs back;
      Tensor grad(device_arena(), dtype, shape, "test");
      back.dy = back.s = back.dsum = x.device;
      back.weight = weight.device;
      back.rstd = rstd.device;
      back.dx = grad;
      back.amax = found.as<float>();
      cuda().norm.backward(cuda_stream(), back);
      expect_found(grad);
      for (bool gated : {false, true}) {
        Shape wide{shape[0], gated ? 2 * shape[1] : shape[1]};
        Twin in = random(dtype, wide, 3);
        Tensor dx(device_arena(), dtype, wide, "test");
        cuda().activation.forward(cuda_stream(),
                                  {in.device, y, Activation::kSilu, gated, {}, found.as<float>()});
        expect_found(y);
        cuda().activation.backward(
            cuda_stream(),
            {x.device, in.device, dx, Activation::kSilu, gated, {}, found.as<float>()});
        expect_found(dx);
      }
    }
  }
}

// A norm or an activation fused with quantisation gives what quantising its output would give, in
// every form. Rows and columns do not fill the blocks; gate and up share one.
TEST_F(CudaQuantize, WhatIsMadeOnTheWayIsWhatWouldHaveBeenWritten) {
  for (Dtype dtype : {Dtype::kBf16, Dtype::kF16, Dtype::kF32}) {
    for (Fp8Scaling scaling : {Fp8Scaling::kDelayed, Fp8Scaling::kBlockwise}) {
      bool runs = scaling == Fp8Scaling::kBlockwise;
      for (const Shape& shape : {Shape{1, runs ? 128 : 16}, Shape{300, 384}, Shape{300, 208}}) {
        for (Fp8Format format : {Fp8Format::kE4m3, Fp8Format::kE5m2}) {
          SCOPED_TRACE(concat(name_of(dtype), " ", shape, ", ", static_cast<int>(scaling)));
          check_made({scaling, format, 1, true}, dtype, shape);
        }
      }
    }
  }
}

TEST_F(CudaQuantize, HistoriesFollowTheCpus) {
  StepState state;
  Tensor there(device_arena(), Dtype::kU8, {sizeof(StepState)}, "test");
  auto both = [&](const Shape& shape) {
    Pair out{Tensor(host_arena(), Dtype::kF32, shape, "test"),
             Tensor(device_arena(), Dtype::kF32, shape, "test")};
    cpu().fill(cpu_stream(), out.host, 0);
    cuda().fill(cuda_stream(), out.device, 0);
    return out;
  };
  Pair history = both({3, 4}), used = both({3});
  for (int step = 1; step <= 12; ++step) {
    state.skip = step % 5 == 0;
    state.update += state.skip == 0;
    cuda().device.upload(cuda_stream(), &state, there);
    Pair seen = pair(Dtype::kF32, {3}, 2);
    for (int i = 0; i < 3; ++i) seen.host.as<float>()[i] = std::fabs(seen.host.as<float>()[i]);
    if (step == 3) seen.host.as<float>()[1] = std::numeric_limits<float>::infinity();
    cuda().device.upload(cuda_stream(), seen.host.view().data, seen.device);
    bool largest = step % 2 == 0;
    std::int64_t interval = step > 8 ? 2 : 1;
    cpu().quantize.update_amax(cpu_stream(),
                               {seen.host, history.host, used.host, &state, largest, interval});
    cuda().quantize.update_amax(
        cuda_stream(), {seen.device, history.device, used.device,
                        static_cast<const StepState*>(there.view().data), largest, interval});
    expect_same(history.host, history.device, "history");
    expect_same(used.host, used.device, "what scales follow from");
  }
}

}  // namespace
}  // namespace bev::cuda_test
