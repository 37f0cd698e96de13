// 8-bit floats: the CPU's bits from every kernel, and its products up to the order of sums.
#include "autograd/quantize.h"

#include "tests/backend_cuda/rig.h"

namespace bev::cuda_test {
namespace {

class CudaQuantize : public CudaRig {
 protected:
  QuantizeTools cpu_tools() { return {cpu(), cpu_stream(), host_arena()}; }
  QuantizeTools cuda_tools() { return {cuda(), cuda_stream(), device_arena()}; }

  // The same numbers in the same dtype on both sides.
  struct Pair {
    Tensor host, device;
  };
  Pair pair(Dtype dtype, const Shape& shape, double scale, const std::vector<double>& first = {}) {
    Twin drawn = random(Dtype::kF32, shape, scale);
    for (std::size_t i = 0; i < first.size(); ++i) drawn.exact.as<double>()[i] = first[i];
    Pair out{Tensor(host_arena(), dtype, shape, "test"),
             Tensor(device_arena(), dtype, shape, "test")};
    cpu().elementwise.cast(cpu_stream(), drawn.exact, out.host);
    cuda().device.upload(cuda_stream(), out.host.view().data, out.device);
    return out;
  }
  std::string bytes_of(const Tensor& tensor, bool device) {
    std::string bytes(tensor.view().bytes(), '\0');
    if (device) {
      cuda().device.fetch(cuda_stream(), tensor, bytes.data()).wait();
    } else {
      std::copy_n(static_cast<const char*>(tensor.view().data), bytes.size(), bytes.data());
    }
    return bytes;
  }
  // Scales beyond the rows, which round a stride up, are never read.
  void expect_same(const Tensor& host, const Tensor& device, const char* what) {
    if (host.empty() && device.empty()) return;
    std::string one = bytes_of(host, false), other = bytes_of(device, true);
    ASSERT_EQ(one.size(), other.size());
    for (std::size_t i = 0; i < one.size(); ++i) {
      ASSERT_EQ(static_cast<int>(one[i]), static_cast<int>(other[i]))
          << what << ", byte " << i << " of " << one.size();
    }
  }
  Quantized zeroed(const QuantizeTools& tools, const QuantizeRequest& request) {
    Quantized out = quantize(tools, request);
    for (const Tensor* tensor : {&out.rows, &out.row_scales, &out.columns, &out.column_scales}) {
      if (!tensor->empty()) tools.kernels.elementwise.fill(tools.stream, *tensor, 7);
    }
    quantize_into(tools, request, out);
    return out;
  }
};

const std::vector<double> kAwkward = {0.0,  -0.0,   1e-30, -1e-30, 3e38,     -3e38,
                                      1e-3, 0.0625, 448,   464,    -57344.0, 61440.0};

TEST_F(CudaQuantize, GivesTheCpusBits) {
  for (Fp8Scaling scaling :
       {Fp8Scaling::kTensorwise, Fp8Scaling::kBlockwise, Fp8Scaling::kNvfp4, Fp8Scaling::kMxfp4}) {
    for (Fp8Role role : {Fp8Role::kInput, Fp8Role::kWeight, Fp8Role::kGradient}) {
      for (Dtype dtype : {Dtype::kF32, Dtype::kBf16, Dtype::kF16}) {
        for (Shape shape : {Shape{1, 128}, Shape{128, 256}, Shape{131, 384}, Shape{700, 128}}) {
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
            cuda().elementwise.fill(cuda_stream(), device.columns, 9);
            cuda().quantize.transpose(cuda_stream(), device.rows, device.columns);
            expect_same(host.columns, device.columns, "rows turned");
          }
          request.rows = false;
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

// The three products of a linear layer, of tokens that fill no block.
TEST_F(CudaQuantize, ProductsAreTheCpus) {
  for (Fp8Scaling scaling : {Fp8Scaling::kTensorwise, Fp8Scaling::kBlockwise, Fp8Scaling::kNvfp4}) {
    for (std::int64_t tokens : {16, 36, 128, 300}) {
      for (Dtype out : {Dtype::kBf16, Dtype::kF16, Dtype::kF32}) {
        SCOPED_TRACE(concat(static_cast<int>(scaling), ", ", tokens, " tokens, ", name_of(out)));
        std::int64_t inside = 256, outside = 384;
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
            return ScaledProductArgs{left, right, to, beta, bias ? added.view() : View{}, false};
          };
          cpu().quantize.product(cpu_stream(), args(host, c.host, b.host));
          cuda().quantize.product(cuda_stream(), args(device, c.device, b.device));
          Twin result{Tensor(host_arena(), Dtype::kF64, shape, "test"), c.device};
          cpu().elementwise.cast(cpu_stream(), c.host, result.exact);
          // The tensor cores add 8-bit products with fewer bits than f32 has.
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

// Rows in packs and not, and more of them than blocks.
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
        cuda().elementwise.fill(cuda_stream(), found, 0);
      };
      cuda().elementwise.fill(cuda_stream(), found, 0);
      NormForwardArgs norm;
      norm.x = x.device;
      norm.y = y;
      norm.weight = weight.device;
      norm.rstd = rstd.device;
      norm.amax = found.as<float>();
      cuda().norm.forward(cuda_stream(), norm);
      expect_found(y);
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

TEST_F(CudaQuantize, HistoriesFollowTheCpus) {
  StepState state;
  Tensor there(device_arena(), Dtype::kU8, {sizeof(StepState)}, "test");
  auto both = [&](const Shape& shape) {
    Pair out{Tensor(host_arena(), Dtype::kF32, shape, "test"),
             Tensor(device_arena(), Dtype::kF32, shape, "test")};
    cpu().elementwise.fill(cpu_stream(), out.host, 0);
    cuda().elementwise.fill(cuda_stream(), out.device, 0);
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
