#include <gtest/gtest.h>

#include <cstring>

#include "base/text.h"
#include "tests/backend_cuda/family.h"

namespace bev::cuda_test {
namespace {

class CudaOptim : public CudaRig {
 protected:
  Tensor upload_state(const StepState& state) {
    std::vector<std::uint8_t> bytes(sizeof state);
    std::memcpy(bytes.data(), &state, sizeof state);
    return words(bytes).device;
  }
  StepState download_state(const Tensor& device) {
    StepState state;
    cuda().device.fetch(cuda_stream(), device, &state).wait();
    return state;
  }
  static const StepState* state_of(const Tensor& device) {
    return static_cast<const StepState*>(device.view().data);
  }
  static StepState some_state(std::int64_t update) {
    StepState state;
    state.random_key = 1234567;
    state.update = update;
    state.lr = 0.01;
    state.weight_decay = 0.1;
    state.grad_multiplier = 0.5;
    return state;
  }
  // On the host with the device's dtype and bits.
  Tensor host_copy(const Tensor& device) {
    Tensor host(host_arena(), device.dtype(), device.shape(), "test");
    cuda().device.fetch(cuda_stream(), device, host.view().data).wait();
    return host;
  }
  // The part of elements that have the same bits.
  static double equal_part(const Tensor& a, const Tensor& b) {
    const std::size_t size = size_of(a.dtype());
    std::int64_t equal = 0;
    for (std::int64_t i = 0; i < a.numel(); ++i) {
      equal += std::memcmp(a.view().address(i), b.view().address(i), size) == 0 ? 1 : 0;
    }
    return static_cast<double>(equal) / static_cast<double>(a.numel());
  }
  Twin squares(Dtype dtype, std::int64_t size) {
    Twin plain = random(dtype, {size});
    std::vector<double> values(plain.exact.as<double>(), plain.exact.as<double>() + size);
    for (double& value : values) value *= value;
    return twin(dtype, {size}, values);
  }
};

TEST_F(CudaOptim, AdamMatchesTheCpu) {
  for (Dtype model : kModelDtypes) {
    for (Dtype gradient : {Dtype::kF32, Dtype::kBf16}) {
      for (bool decoupled : {true, false}) {
        for (std::int64_t first : {0, 1}) {
          for (std::int64_t size : {5, 100003}) {
            SCOPED_TRACE(concat(name_of(model), " ", name_of(gradient), " ", decoupled, " ", size));
            StepState state = some_state(3);
            Tensor device_state = upload_state(state);
            Twin main = part(random(Dtype::kF32, {size}), first, size);
            Twin grad = part(random(gradient, {size}), first, size);
            Twin m = part(random(Dtype::kF32, {size}), first, size);
            Twin v = part(squares(Dtype::kF32, size), first, size);
            Twin values = part(poisoned(model, {size}), first, size);
            auto args = [&](Tensor Twin::*side, const StepState* at) {
              return AdamArgs{.main = (main.*side).view(),
                              .grad = (grad.*side).view(),
                              .m = (m.*side).view(),
                              .v = (v.*side).view(),
                              .values = (values.*side).view(),
                              .state = at,
                              .lr_mult = 2,
                              .wd_mult = 0.5,
                              .beta2 = 0.95,
                              .epsilon = 1e-6,
                              .decoupled = decoupled};
            };
            cpu().optim.adam(cpu_stream(), args(&Twin::exact, &state));
            cuda().optim.adam(cuda_stream(), args(&Twin::device, state_of(device_state)));
            EXPECT_LT(error(main), 1e-6);
            EXPECT_LT(error(m), 1e-6);
            EXPECT_LT(error(v), 1e-6);
            EXPECT_LT(error(values), tolerance(model));
          }
        }
      }
    }
  }
}

struct Kept {
  Dtype main, grad, m, v;
};

// The noise is the CPU's, so all but the elements on an edge of rounding have its bits.
TEST_F(CudaOptim, AdamInBf16DrawsTheCpusNoise) {
  const Dtype f32 = Dtype::kF32, bf16 = Dtype::kBf16;
  for (const Kept& kept : {Kept{bf16, bf16, bf16, bf16}, Kept{bf16, f32, f32, f32},
                           Kept{f32, f32, bf16, f32}, Kept{f32, bf16, f32, bf16}}) {
    for (std::int64_t offset : {0, 3, 4}) {
      constexpr std::int64_t kSize = 20011;
      StepState state = some_state(7);
      Tensor device_state = upload_state(state);
      Tensor main = random(kept.main, {kSize}).device, grad = random(kept.grad, {kSize}).device;
      Tensor m = random(kept.m, {kSize}).device, v = squares(kept.v, kSize).device;
      Tensor host_main = host_copy(main), host_grad = host_copy(grad);
      Tensor host_m = host_copy(m), host_v = host_copy(v);
      auto args = [&](Tensor& a, Tensor& b, Tensor& c, Tensor& d, const StepState* at) {
        return AdamArgs{.main = a,
                        .grad = b,
                        .m = c,
                        .v = d,
                        .values = a,
                        .state = at,
                        .random_stream = 0x1234567890abcdef,
                        .first = offset};
      };
      cpu().optim.adam(cpu_stream(), args(host_main, host_grad, host_m, host_v, &state));
      cuda().optim.adam(cuda_stream(), args(main, grad, m, v, state_of(device_state)));
      EXPECT_GT(equal_part(host_copy(m), host_m), kept.m == bf16 ? 0.999 : 0.2);
      EXPECT_GT(equal_part(host_copy(v), host_v), kept.v == bf16 ? 0.999 : 0.2);
      EXPECT_GT(equal_part(host_copy(main), host_main), kept.main == bf16 ? 0.999 : 0.2);
    }
  }
}

TEST_F(CudaOptim, SgdMatchesTheCpu) {
  for (Dtype model : kModelDtypes) {
    for (Dtype gradient : {Dtype::kF32, Dtype::kBf16}) {
      for (std::int64_t update : {1, 2}) {
        for (bool momentum : {true, false}) {
          constexpr std::int64_t kSize = 3001;
          StepState state = some_state(update);
          Tensor device_state = upload_state(state);
          Twin main = random(Dtype::kF32, {kSize}), grad = random(gradient, {kSize});
          Twin m = update == 1 ? poisoned(Dtype::kF32, {kSize}) : random(Dtype::kF32, {kSize});
          Twin values = poisoned(model, {kSize});
          auto args = [&](Tensor Twin::*side, const StepState* at) {
            return SgdArgs{.main = (main.*side).view(),
                           .grad = (grad.*side).view(),
                           .m = momentum ? (m.*side).view() : View{},
                           .values = (values.*side).view(),
                           .state = at,
                           .momentum = 0.8};
          };
          cpu().optim.sgd(cpu_stream(), args(&Twin::exact, &state));
          cuda().optim.sgd(cuda_stream(), args(&Twin::device, state_of(device_state)));
          EXPECT_LT(error(main), 1e-6);
          if (momentum) {
            EXPECT_LT(error(m), 1e-6);
          }
          EXPECT_LT(error(values), tolerance(model));
        }
      }
    }
  }
}

TEST_F(CudaOptim, SkipLeavesEverythingAsItIs) {
  StepState state = some_state(3);
  state.skip = 1;
  Tensor device_state = upload_state(state);
  Twin main = random(Dtype::kF32, {99}), grad = random(Dtype::kF32, {99});
  Twin m = random(Dtype::kF32, {99}), v = random(Dtype::kF32, {99});
  Twin values = random(Dtype::kBf16, {99});
  cuda().optim.adam(cuda_stream(), {.main = main.device,
                                    .grad = grad.device,
                                    .m = m.device,
                                    .v = v.device,
                                    .values = values.device,
                                    .state = state_of(device_state)});
  cuda().optim.sgd(cuda_stream(), {.main = main.device,
                                   .grad = grad.device,
                                   .m = m.device,
                                   .values = values.device,
                                   .state = state_of(device_state)});
  for (const Twin* twin : {&main, &m, &v, &values}) EXPECT_EQ(error(*twin), 0);
}

TEST_F(CudaOptim, SumSquaresInF64) {
  for (Dtype dtype : kModelDtypes) {
    for (std::int64_t size : {0, 1, 31, 1000, 3000017}) {
      for (std::int64_t first : {0, 1}) {
        if (first > size) continue;
        // Squares of these overflow f32, except where the dtype itself cannot hold them.
        Twin x = part(random(dtype, {size}, dtype == Dtype::kF16 ? 100 : 1e25), first, size);
        Twin sum = words<double>({0.5});
        cpu().optim.sum_squares(cpu_stream(), x.exact, sum.exact.as<double>());
        cuda().optim.sum_squares(cuda_stream(), x.device, sum.device.as<double>());
        EXPECT_LT(error(sum), 1e-12) << name_of(dtype) << " " << size;
      }
    }
    for (double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
      std::vector<double> values(100, 1);
      values[97] = bad;
      Twin x = twin(dtype, {100}, values), sum = words<double>({0});
      cuda().optim.sum_squares(cuda_stream(), x.device, sum.device.as<double>());
      EXPECT_FALSE(std::isfinite(download(sum.device)[0]));
    }
  }
}

TEST_F(CudaOptim, ClipMatchesTheCpu) {
  struct Row {
    double square_sum, loss, max_norm, loss_scale;
  };
  const double infinity = std::numeric_limits<double>::infinity();
  for (const Row& row : {Row{16, 2, 1, 1}, Row{16, 2, 8, 1}, Row{16, 2, 0, 1}, Row{1600, 2, 1, 8},
                         Row{0, 0, 1, 1}, Row{std::nan(""), 2, 1, 1}, Row{infinity, 2, 0, 1},
                         Row{16, std::nan(""), 1, 1}, Row{16, -infinity, 1, 1}}) {
    StepState want = some_state(3);
    want.skip = 1;
    want.loss_scale = row.loss_scale;
    Tensor device_state = upload_state(want);
    Twin sum = words<double>({row.square_sum}), loss = words<double>({row.loss});
    cpu().optim.clip(cpu_stream(),
                     {sum.exact.as<double>(), loss.exact.as<double>(), &want, row.max_norm});
    cuda().optim.clip(cuda_stream(),
                      {sum.device.as<double>(), loss.device.as<double>(),
                       static_cast<StepState*>(device_state.view().data), row.max_norm});
    StepState got = download_state(device_state);
    EXPECT_EQ(got.skip, want.skip);
    EXPECT_EQ(got.failed, want.failed);
    EXPECT_EQ(got.update, want.update);
    EXPECT_EQ(got.grad_multiplier, want.grad_multiplier);
    EXPECT_EQ(got.lr, want.lr);
  }
}

TEST_F(CudaOptim, NormalHasTheBitsOfTheCpu) {
  for (Dtype dtype : kModelDtypes) {
    for (std::int64_t first :
         {std::int64_t{0}, std::int64_t{1}, std::int64_t{4611686018427387903}}) {
      for (std::int64_t size : {1, 2, 5, 100001}) {
        Tensor want(host_arena(), dtype, {size}, "test");
        Twin got = poisoned(dtype, {size});
        cpu().optim.normal(cpu_stream(), {want, 99, first, 0.5, 0.02});
        cuda().optim.normal(cuda_stream(), {got.device, 99, first, 0.5, 0.02});
        EXPECT_EQ(equal_part(host_copy(got.device), want), 1) << first << " " << size;
      }
    }
  }
}

}  // namespace
}  // namespace bev::cuda_test
