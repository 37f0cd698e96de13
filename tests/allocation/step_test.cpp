// From its second step on, training takes no memory: neither from the heap nor for tensors. This
// program counts every call of operator new.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "backend/cpu/cpu_kernels.h"
#include "base/divide.h"
#include "comm/world.h"
#include "data/batch.h"
#include "kernels/device.h"
#include "kernels/moe.h"
#include "kernels/router.h"
#include "parallel/engine.h"
#include "tests/support/layouts.h"

namespace {
std::atomic<std::int64_t> allocations{0};

void* count_and_allocate(std::size_t bytes, std::size_t alignment) {
  allocations.fetch_add(1);
  void* memory = std::aligned_alloc(alignment, bev::round_up(bytes, alignment));
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
}  // namespace

void* operator new(std::size_t bytes) {
  return count_and_allocate(bytes, __STDCPP_DEFAULT_NEW_ALIGNMENT__);
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return count_and_allocate(bytes, static_cast<std::size_t>(alignment));
}
// Not to be inlined: the compiler would warn of memory that comes from new and goes to free.
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}

namespace bev {
namespace {

constexpr std::int64_t kLength = 16, kSamples = 4;

struct Case {
  const char* name;
  ModelConfig model;
  Dtype dtype;
  std::int64_t micro_batch_size;  // of kSamples
  RecomputeGranularity recompute = RecomputeGranularity::kNone;
};

class StepAllocation : public testing::TestWithParam<Case> {};

TEST_P(StepAllocation, SecondStepTakesNoMemory) {
  const Case& c = GetParam();
  run_thread_ranks(1, {}, [&](World& world) {
    EngineOptions options;
    options.model = c.model;
    options.dtype = c.dtype;
    options.threads = 2;
    options.params_norm = options.zero_gradients = true;
    options.parallel.data_parallel_size = 1;
    options.parallel.recompute_granularity = c.recompute;
    options.parallel.recompute_modules = {"core_attn", "layernorm", "activation", "mlp"};
    Engine engine(world, cpu_kernels(), options);
    std::vector<TokenSample> samples;
    for (std::int64_t row = 0; row < kSamples; ++row) {
      std::vector<std::int32_t> tokens;
      for (std::int64_t t = 0; t <= kLength; ++t) {
        tokens.push_back(static_cast<std::int32_t>((row * 31 + t * 17) % c.model.vocab_size));
      }
      samples.push_back(window_sample(tokens));
    }
    std::vector<MicroBatch> batches =
        rank_micro_batches(engine.model().ctx(), samples, c.micro_batch_size);
    engine.train_step(batches, {1, 1e-3, 0.01, 1.0, 1.0});
    std::size_t reserved =
        engine.model().rank().arena().reserved() + engine.model().rank().inputs().reserved();
    std::int64_t before = allocations.load();
    StepResult result = engine.train_step(batches, {2, 1e-3, 0.01, 1.0, 1.0});
    EXPECT_EQ(allocations.load(), before);
    EXPECT_EQ(engine.model().rank().arena().reserved() + engine.model().rank().inputs().reserved(),
              reserved);
    EXPECT_TRUE(result.finite);
  });
}

// Kernels of layers with experts, whose steps report the load of routers in memory of its own.
TEST(KernelAllocation, ChoicesOfExpertsAreMadeInScratchMemory) {
  std::unique_ptr<Device> device = cpu_kernels().device.open({});
  std::vector<std::int32_t> experts = {0, 1, 0, 2, 1, 0}, kept(6), members(6), counts(4);
  std::vector<float> probs = {0.5F, 0.5F, 0.9F, 0.1F, 0.7F, 0.3F};
  float dropped = 0;
  auto ints = [](std::vector<std::int32_t>& values, Shape shape) {
    return View{values.data(), Dtype::kI32, shape};
  };
  LimitArgs limit;
  limit.experts = ints(experts, {3, 2});
  limit.probs = {probs.data(), Dtype::kF32, {3, 2}};
  limit.kept = ints(kept, {3, 2});
  limit.dropped = {&dropped, Dtype::kF32, {1}};
  limit.expert_count = 3;
  limit.capacity = 2;
  DispatchArgs dispatch;
  dispatch.experts = limit.experts;
  dispatch.members = ints(members, {6});
  dispatch.counts = ints(counts, {2, 2});
  dispatch.expert_count = 3;
  std::int64_t before = 0;
  for (int round = 0; round < 2; ++round) {
    before = allocations.load();
    cpu_kernels().router.limit(device->stream(), limit);
    cpu_kernels().moe.dispatch(device->stream(), dispatch);
  }
  EXPECT_EQ(allocations.load(), before);
  EXPECT_EQ(kept, (std::vector<std::int32_t>{0, 1, 0, 2, 1, -1}));
  EXPECT_EQ(dropped, 1);
}

INSTANTIATE_TEST_SUITE_P(Cpu, StepAllocation,
                         testing::Values(Case{"Gpt2", test::tiny_gpt(), Dtype::kF32, 4},
                                         Case{"Gpt2Bf16", test::tiny_gpt(), Dtype::kBf16, 4},
                                         Case{"Llama", test::tiny_llama(), Dtype::kF32, 4},
                                         Case{"LlamaBf16Accumulating", test::tiny_llama(),
                                              Dtype::kBf16, 1},
                                         Case{"LlamaRecomputingAll", test::tiny_llama(),
                                              Dtype::kBf16, 2, RecomputeGranularity::kFull},
                                         Case{"Gpt2RecomputingParts", test::tiny_gpt(), Dtype::kF32,
                                              2, RecomputeGranularity::kSelective}),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace bev
