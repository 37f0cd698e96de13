#include "kernels/optim.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/text.h"
#include "tensor/moment8.h"
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
  // A bitwise copy on the host, in the same dtype.
  Tensor host_copy(const Tensor& device) {
    Tensor host(host_arena(), device.dtype(), device.shape(), "test");
    cuda().device.fetch(cuda_stream(), device, host.view().data).wait();
    return host;
  }
  // The fraction of elements that are bitwise equal.
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
            auto run = [&](const Kernels& kernels, const Stream& stream, Tensor Twin::*side,
                           const StepState* at) {
              const AdamRange range{.main = (main.*side).view(),
                                    .grad = (grad.*side).view(),
                                    .m = (m.*side).view(),
                                    .v = (v.*side).view(),
                                    .values = (values.*side).view(),
                                    .lr_mult = 2,
                                    .wd_mult = 0.5};
              kernels.optim.adam(
                  stream, {.state = at, .beta2 = 0.95, .epsilon = 1e-6, .decoupled = decoupled},
                  {&range, 1});
            };
            run(cpu(), cpu_stream(), &Twin::exact, &state);
            run(cuda(), cuda_stream(), &Twin::device, state_of(device_state));
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

// The noise of stochastic rounding is the CPU's, so all elements but those on a rounding edge are
// bitwise equal.
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
      auto range_of = [&](const Tensor& a, const Tensor& b, const Tensor& c, const Tensor& d) {
        return AdamRange{.main = a,
                         .grad = b,
                         .m = c,
                         .v = d,
                         .values = a,
                         .random_stream = 0x1234567890abcdef,
                         .first = offset};
      };
      const AdamRange host = range_of(host_main, host_grad, host_m, host_v);
      const AdamRange device = range_of(main, grad, m, v);
      cpu().optim.adam(cpu_stream(), {.state = &state}, {&host, 1});
      cuda().optim.adam(cuda_stream(), {.state = state_of(device_state)}, {&device, 1});
      EXPECT_GT(equal_part(host_copy(m), host_m), kept.m == bf16 ? 0.999 : 0.2);
      EXPECT_GT(equal_part(host_copy(v), host_v), kept.v == bf16 ? 0.999 : 0.2);
      EXPECT_GT(equal_part(host_copy(main), host_main), kept.main == bf16 ? 0.999 : 0.2);
    }
  }
}

// With beta1 = 0 and a gradient of few significant bits nothing is rounded before the moments are
// packed, so their bytes equal the CPU's, including tails and unaligned ranges.
TEST_F(CudaOptim, MomentsIn8BitsHaveTheBytesOfTheCpu) {
  for (std::int64_t size : {1, 127, 128, 4097, 100003}) {
    for (std::int64_t skipped : {0, 1}) {
      for (Dtype main_dtype : {Dtype::kF32, Dtype::kBf16}) {
        SCOPED_TRACE(concat(size, " ", skipped, " ", name_of(main_dtype)));
        StepState state = some_state(7);
        Tensor device_state = upload_state(state);
        Tensor main = random(main_dtype, {size + skipped}).device;
        Tensor grad = random(Dtype::kBf16, {size + skipped}, 1e-3).device;
        auto bytes = [&](std::int64_t count, std::uint8_t value) {
          return words(std::vector<std::uint8_t>(static_cast<std::size_t>(count), value)).device;
        };
        Tensor kept[] = {main,
                         grad,
                         bytes(size + skipped, 0),
                         bytes(size + skipped, 0),
                         bytes(moment_blocks(size), kLeastMomentScale),
                         bytes(moment_blocks(size), kLeastMomentScale)};
        std::vector<Tensor> host;
        for (const Tensor& tensor : kept) host.push_back(host_copy(tensor));
        auto range_of = [&](const auto& of) {
          auto part = [&](int i) { return of[i].view().rows(skipped, size + skipped); };
          return AdamRange{.main = part(0),
                           .grad = part(1),
                           .m = part(2),
                           .v = part(3),
                           .values = part(0),
                           .m_scales = of[4],
                           .v_scales = of[5],
                           .random_stream = 99,
                           .first = skipped};
        };
        const AdamRange on_host = range_of(host), on_device = range_of(kept);
        const AdamRule rule{.beta1 = 0, .beta2 = 0.75};
        for (int update = 0; update < 3; ++update) {
          AdamRule cpu_rule = rule, cuda_rule = rule;
          cpu_rule.state = &state;
          cuda_rule.state = state_of(device_state);
          cpu().optim.adam(cpu_stream(), cpu_rule, {&on_host, 1});
          cuda().optim.adam(cuda_stream(), cuda_rule, {&on_device, 1});
          // From the second update on the second moment is a sum, which may be computed with FMA or
          // not.
          for (int i : {2, 4}) EXPECT_EQ(equal_part(host_copy(kept[i]), host[i]), 1) << i;
          for (int i : {3, 5}) {
            EXPECT_GE(equal_part(host_copy(kept[i]), host[i]), update == 0 ? 1 : 0.99) << i;
          }
        }
      }
    }
  }
}

// Kernels access state in pinned host memory directly, with bitwise equal results.
TEST_F(CudaOptim, StateMayLieInHostMemory) {
  constexpr std::int64_t kSize = 300007;
  StepState state = some_state(3);
  Tensor device_state = upload_state(state);
  Arena pinned(cuda().device.pinned_memory());
  Tensor grad = random(Dtype::kBf16, {kSize}).device;
  Tensor there[] = {random(Dtype::kF32, {kSize}).device, random(Dtype::kF32, {kSize}).device,
                    squares(Dtype::kF32, kSize).device};
  std::vector<Tensor> here;
  for (const Tensor& tensor : there) {
    here.emplace_back(pinned, tensor.dtype(), tensor.shape(), "test");
    cuda().device.copy(cuda_stream(), tensor, here.back());
  }
  Tensor values = random(Dtype::kBf16, {kSize}).device,
         others = random(Dtype::kBf16, {kSize}).device;
  auto range_of = [&](const auto& of, const Tensor& copy) {
    return AdamRange{.main = of[0], .grad = grad, .m = of[1], .v = of[2], .values = copy};
  };
  const AdamRange on_device = range_of(there, values), on_host = range_of(here, others);
  cuda().optim.adam(cuda_stream(), {.state = state_of(device_state)}, {&on_device, 1});
  cuda().optim.adam(cuda_stream(), {.state = state_of(device_state)}, {&on_host, 1});
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(equal_part(host_copy(there[i]), host_copy(here[i])), 1) << i;
  }
  EXPECT_EQ(equal_part(host_copy(values), host_copy(others)), 1);
  cuda().fill(cuda_stream(), here[0], 3);
  Tensor filled = host_copy(here[0]);
  EXPECT_EQ(filled.as<float>()[kSize - 1], 3);
  std::vector<float> uploaded(kSize, 5);
  cuda().device.upload(cuda_stream(), uploaded.data(), here[0]);
  EXPECT_EQ(host_copy(here[0]).as<float>()[kSize - 1], 5);
  EXPECT_EQ(here[0].as<float>()[0], 5) << "the host sees it too";
}

// More ranges than one launch takes, of any length and alignment, each with its own name and
// factors.
TEST_F(CudaOptim, ManyRangesAtOnceAreEachTheirOwn) {
  constexpr int kRanges = 75;
  for (Dtype dtype : {Dtype::kBf16, Dtype::kF32}) {
    StepState state = some_state(7);
    for (int i = 0; i < LearningRates::kMost; ++i) state.lr.values[i] = 0.001 * (i + 1);
    Tensor device_state = upload_state(state);
    std::vector<Tensor> kept;  // main, grad, m, v of each range on the device, then on the host
    std::vector<AdamRange> device, host;
    for (int i = 0; i < kRanges; ++i) {
      const std::int64_t size = i * 997 % 5000, skipped = i % 5 == 4 ? 1 : 0;
      const auto four = static_cast<std::ptrdiff_t>(kept.size());
      for (int part = 0; part < 4; ++part) {
        const Shape shape{size + skipped};
        kept.push_back((part == 3 ? squares(dtype, shape[0]) : random(dtype, shape)).device);
      }
      for (int part = 0; part < 4; ++part) kept.push_back(host_copy(kept[four + part]));
      auto range_of = [&](std::ptrdiff_t at) {
        auto view = [&](int part) {
          return kept[static_cast<std::size_t>(at + part)].view().rows(skipped, size + skipped);
        };
        return AdamRange{.main = view(0),
                         .grad = view(1),
                         .m = view(2),
                         .v = view(3),
                         .values = view(0),
                         .lr_mult = 1 + 0.1 * i,
                         .wd_mult = i % 2 == 0 ? 1.0 : 0.0,
                         .lr_index = i % LearningRates::kMost,
                         .updates_before = i % 3,
                         .random_stream = 100u + static_cast<std::uint64_t>(i),
                         .first = i % 7};
      };
      device.push_back(range_of(four));
      host.push_back(range_of(four + 4));
    }
    cpu().optim.adam(cpu_stream(), {.state = &state}, host);
    cuda().optim.adam(cuda_stream(), {.state = state_of(device_state)}, device);
    for (std::size_t i = 0; i < kept.size(); i += 8) {
      for (std::size_t part : {0u, 2u, 3u}) {
        if (kept[i].numel() == 0) continue;
        EXPECT_GT(equal_part(host_copy(kept[i + part]), kept[i + 4 + part]),
                  dtype == Dtype::kBf16 ? 0.99 : 0.2)
            << i / 8 << " " << part;
      }
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

TEST_F(CudaOptim, LionMatchesTheCpu) {
  for (Dtype model : kModelDtypes) {
    for (std::int64_t size : {1, 3001, 4096}) {
      StepState state = some_state(2);
      Tensor device_state = upload_state(state);
      Twin main = random(Dtype::kF32, {size}), grad = random(Dtype::kF32, {size});
      Twin m = random(Dtype::kF32, {size}), values = poisoned(model, {size});
      auto args = [&](Tensor Twin::*side, const StepState* at) {
        return LionArgs{.main = (main.*side).view(),
                        .grad = (grad.*side).view(),
                        .m = (m.*side).view(),
                        .values = (values.*side).view(),
                        .state = at};
      };
      cpu().optim.lion(cpu_stream(), args(&Twin::exact, &state));
      cuda().optim.lion(cuda_stream(), args(&Twin::device, state_of(device_state)));
      EXPECT_LT(error(main), 1e-6);
      EXPECT_LT(error(m), 1e-6);
      EXPECT_LT(error(values), tolerance(model));
    }
  }
}

TEST_F(CudaOptim, DirectionsAndMatrixUpdatesMatchTheCpu) {
  for (Dtype dtype : {Dtype::kF32, Dtype::kBf16}) {
    for (bool momentum : {true, false}) {
      for (std::int64_t size : {1, 3001, 4096}) {
        StepState state = some_state(2);
        Tensor device_state = upload_state(state);
        Twin grad = random(dtype, {size}), m = random(Dtype::kF32, {size});
        Twin out = poisoned(dtype, {size});
        auto direction = [&](Tensor Twin::*side, const StepState* at) {
          return DirectionArgs{.grad = (grad.*side).view(),
                               .m = momentum ? (m.*side).view() : View{},
                               .out = (out.*side).view(),
                               .state = at,
                               .momentum = 0.9,
                               .nesterov = size == 4096};
        };
        cpu().optim.direction(cpu_stream(), direction(&Twin::exact, &state));
        cuda().optim.direction(cuda_stream(), direction(&Twin::device, state_of(device_state)));
        EXPECT_LT(error(out), tolerance(dtype));
        EXPECT_LT(error(m), 1e-6);
        Twin main = random(Dtype::kF32, {size}), values = poisoned(dtype, {size});
        Twin update = random(dtype, {size});
        auto apply = [&](Tensor Twin::*side, const StepState* at) {
          return MatrixUpdateArgs{.main = (main.*side).view(),
                                  .update = (update.*side).view(),
                                  .values = (values.*side).view(),
                                  .state = at,
                                  .factor = 3,
                                  .update_has_lr = momentum};
        };
        cpu().optim.matrix_update(cpu_stream(), apply(&Twin::exact, &state));
        cuda().optim.matrix_update(cuda_stream(), apply(&Twin::device, state_of(device_state)));
        EXPECT_LT(error(main), 1e-6);
        EXPECT_LT(error(values), tolerance(dtype));
      }
    }
  }
  Twin sum = words<double>({6.25}), factor = poisoned(Dtype::kF32, {1});
  cpu().optim.inverse_norm(cpu_stream(), sum.exact.as<double>(), 1e-7, factor.exact);
  cuda().optim.inverse_norm(cuda_stream(), sum.device.as<double>(), 1e-7, factor.device);
  EXPECT_LT(error(factor), 1e-6);
}

TEST_F(CudaOptim, SkipLeavesEverythingAsItIs) {
  StepState state = some_state(3);
  state.skip = 1;
  Tensor device_state = upload_state(state);
  Twin main = random(Dtype::kF32, {99}), grad = random(Dtype::kF32, {99});
  Twin m = random(Dtype::kF32, {99}), v = random(Dtype::kF32, {99});
  Twin values = random(Dtype::kBf16, {99});
  const AdamRange range{.main = main.device,
                        .grad = grad.device,
                        .m = m.device,
                        .v = v.device,
                        .values = values.device};
  cuda().optim.adam(cuda_stream(), {.state = state_of(device_state)}, {&range, 1});
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
        // Squares of these values overflow f32, except if the dtype itself cannot represent them.
        Twin x = part(random(dtype, {size}, dtype == Dtype::kF16 ? 100 : 1e25), first, size);
        Twin sum = words<double>({0.5});
        const View exact = x.exact, device = x.device;
        cpu().optim.sum_squares(cpu_stream(), {&exact, 1}, sum.exact.as<double>());
        cuda().optim.sum_squares(cuda_stream(), {&device, 1}, sum.device.as<double>());
        EXPECT_LT(error(sum), 1e-12) << name_of(dtype) << " " << size;
      }
    }
    for (double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
      std::vector<double> values(100, 1);
      values[97] = bad;
      Twin x = twin(dtype, {100}, values), sum = words<double>({0});
      const View device = x.device;
      cuda().optim.sum_squares(cuda_stream(), {&device, 1}, sum.device.as<double>());
      EXPECT_FALSE(std::isfinite(download(sum.device)[0]));
    }
  }
}

TEST_F(CudaOptim, CountZerosMatchesTheCpu) {
  for (Dtype dtype : kModelDtypes) {
    for (std::int64_t size : {0, 1, 31, 1000, 3000017}) {
      for (std::int64_t first : {0, 1}) {
        if (first > size) continue;
        std::vector<double> values(static_cast<std::size_t>(size), 1e-6);
        for (std::size_t i = 0; i < values.size(); i += 3) values[i] = i % 2 == 0 ? 0.0 : -0.0;
        if (size > 31) values[31] = std::nan("");
        Twin x = part(twin(dtype, {size}, values), first, size);
        Twin count = words<double>({0.5});
        const View exact = x.exact, device = x.device;
        cpu().optim.count_zeros(cpu_stream(), {&exact, 1}, count.exact.as<double>());
        cuda().optim.count_zeros(cuda_stream(), {&device, 1}, count.device.as<double>());
        EXPECT_EQ(error(count), 0) << name_of(dtype) << " " << size;
      }
    }
  }
}

TEST_F(CudaOptim, SumSquaresOfManyTensors) {
  for (Dtype dtype : kModelDtypes) {
    std::vector<Twin> twins;
    std::vector<View> exact, device;
    for (int i = 0; i < 150; ++i) {
      const std::int64_t size = i * 7919 % 20000, first = i % 3 == 1 ? 1 : 0;
      twins.push_back(part(random(dtype, {size + first}), first, size + first));
      exact.push_back(twins.back().exact);
      device.push_back(twins.back().device);
    }
    Twin sum = words<double>({0.5});
    cpu().optim.sum_squares(cpu_stream(), exact, sum.exact.as<double>());
    cuda().optim.sum_squares(cuda_stream(), device, sum.device.as<double>());
    EXPECT_LT(error(sum), 1e-12) << name_of(dtype);
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
