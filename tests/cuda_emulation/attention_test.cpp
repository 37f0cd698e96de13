// The attention kernels against the CPU backend in f64: paged and contiguous, decodes, prefills and
// both in a call, with and without splits.
#include <gtest/gtest.h>

#include <bit>
#include <optional>

#include "backend/cuda/attention/attention_paths.h"
#include "tests/backend_cpu/paged_cache.h"
#include "tests/cuda_emulation/emulated_stream.h"

namespace bev::cuda_emulation {
namespace {
using namespace kernel_test;

struct RunSize {
  std::int32_t queries, keys;
};

struct Case {
  const char* name;
  std::vector<RunSize> runs;
  std::int64_t heads = 4, kv_heads = 2, head_size = 64, v_size = 64;
  std::int64_t window = -1;
  double softcap = 0;
  bool causal = true;
  Dtype dtype = Dtype::kBf16;
  std::int64_t padding = 8;  // elements between the rows of keys
  bool values_in_keys = false;
  bool chunked = false;
};

struct Memory {
  std::int64_t block_tokens = 0;    // 0: contiguous
  std::int32_t more_than_now = -1;  // of the host's bounds; below 0: no device runs
};

using Forward = void (*)(const Stream&, const AttentionForwardArgs&);

class Problem {
 public:
  explicit Problem(const Case& item)
      : item_(item),
        runs_(runs_of(item)),
        shape_{.runs = runs_,
               .q_heads = item.heads,
               .kv_heads = item.kv_heads,
               .head_size = item.head_size,
               .v_head_size = item.v_size,
               .q_stride = item.heads * item.head_size + item.padding,
               .k_stride = item.kv_heads * item.head_size + item.padding,
               .v_stride = item.kv_heads * item.v_size + 2 * item.padding,
               .dtype = item.dtype,
               .rule = {.scale = 1 / std::sqrt(static_cast<double>(item.head_size)),
                        .softcap = item.softcap,
                        .window = item.window,
                        .chunked = item.chunked,
                        .causal = item.causal},
               .random = {}},
        q_(random_buffer(item.dtype, {q_rows(), shape_.q_stride}, 1, 2)),
        k_(random_buffer(item.dtype, {k_rows(), shape_.k_stride}, 2, 2)),
        v_(random_buffer(item.dtype, {k_rows(), shape_.v_stride}, 3)) {
    if (item.values_in_keys) {
      shape_.v_stride = shape_.k_stride;
      v_ = k_;
    }
    set_wanted();
  }
  Problem(const Problem&) = delete;
  Problem& operator=(const Problem&) = delete;

  // Compares with the CPU; returns the bits of out and lse.
  std::string check(Forward forward, Stream stream, const Memory& memory) {
    AttentionShape shape = shape_;
    std::vector<AttentionRun> bounds = runs_;
    if (memory.more_than_now > 0) {
      for (AttentionRun& run : bounds) {
        run.k_count += memory.more_than_now;
        run.offset += memory.more_than_now;
      }
    }
    shape.runs = bounds;
    std::optional<PagedCache> cache;
    if (memory.block_tokens > 0) {
      cache.emplace(shape_, runs_, k_, v_, memory.block_tokens, first_keys());
    }
    const View k = cache ? cache->k.view() : k_.view(), v = cache ? cache->v.view() : v_.view();
    DeviceTensor device_q(q_.view()), device_k(k), device_v(v);
    DeviceArray<std::int32_t> table(cache ? cache->table : std::vector<std::int32_t>{});
    DeviceArray<AttentionRun> device_runs(runs_);
    DeviceTensor out(shape.dtype, {q_rows(), shape.q_heads * shape.v_head_size});
    DeviceTensor lse(Dtype::kF32, {q_rows(), shape.q_heads});
    KeyPages pages;
    if (cache) pages = {table.data(), cache->pages.stride, cache->pages.block_tokens};
    forward(stream, {.shape = shape,
                     .q = device_q.data(),
                     .k = device_k.data(),
                     .v = item_.values_in_keys ? device_k.data() : device_v.data(),
                     .out = out.view(),
                     .lse = lse.view(),
                     .device_runs = memory.more_than_now >= 0 ? device_runs.data() : nullptr,
                     .pages = pages});
    EXPECT_TRUE(out.intact() && lse.intact());
    const double tolerance = shape.dtype == Dtype::kF32 ? 4e-6 : 4 * epsilon_of(shape.dtype);
    expect_near(out.values(), out_, tolerance);
    expect_near(lse.values(), lse_, shape.dtype == Dtype::kF32 ? 2e-6 : 2e-5);
    return out.bits() + lse.bits();
  }

 private:
  static std::vector<AttentionRun> runs_of(const Case& item) {
    std::vector<AttentionRun> runs;
    std::int32_t q = 0;
    std::int64_t k = 0;
    for (const RunSize& size : item.runs) {
      runs.push_back({.q_begin = q,
                      .q_count = size.queries,
                      .k_begin = k,
                      .k_count = size.keys,
                      .offset = size.keys - size.queries});
      q += size.queries;
      k += size.keys;
    }
    return runs;
  }
  std::int64_t q_rows() const { return runs_.back().q_begin + runs_.back().q_count; }
  std::int64_t k_rows() const { return runs_.back().k_begin + runs_.back().k_count; }

  // The first key that a query of each run sees.
  std::vector<std::int64_t> first_keys() const {
    std::vector<std::int64_t> keys;
    for (const AttentionRun& run : runs_) {
      const bool all = item_.window < 0 || !item_.causal || item_.chunked;
      keys.push_back(all ? 0 : run.offset - item_.window);
    }
    return keys;
  }

  // By the CPU, in f64.
  void set_wanted() {
    ThreadPool pool(1);
    AttentionShape shape = shape_;
    shape.dtype = Dtype::kF64;
    Buffer q(Dtype::kF64, q_.view().shape, q_.values()),
        k(Dtype::kF64, k_.view().shape, k_.values());
    Buffer v(Dtype::kF64, v_.view().shape, v_.values());
    Buffer out(Dtype::kF64, {q_rows(), shape.q_heads * shape.v_head_size});
    Buffer lse(Dtype::kF64, {q_rows(), shape.q_heads});
    cpu_kernels().attention.forward({.pool = &pool}, {.shape = shape,
                                                      .q = q.view().data,
                                                      .k = k.view().data,
                                                      .v = v.view().data,
                                                      .out = out.view(),
                                                      .lse = lse.view()});
    out_ = out.values();
    lse_ = lse.values();
  }

  Case item_;
  std::vector<AttentionRun> runs_;
  AttentionShape shape_;
  Buffer q_, k_, v_;
  std::vector<double> out_, lse_;
};

const std::vector<Device> kDevices = {
    {.multiprocessors = 132, .arch = 90, .schedule = Schedule::kRandom},
    {.multiprocessors = 132, .arch = 80, .shared_memory = 163 << 10, .schedule = Schedule::kLast},
    {.multiprocessors = 2, .arch = 86, .shared_memory = 99 << 10, .schedule = Schedule::kFirst},
};

void check_everywhere(const std::vector<Case>& cases) {
  for (const Case& item : cases) {
    Problem problem(item);
    std::size_t at = 0;
    for (const Device& settings : kDevices) {
      ++at;
      for (const Memory& memory :
           {Memory{}, Memory{16}, Memory{4, 70}, Memory{64, 0}, Memory{128, 700}, Memory{0, 130}}) {
        if (++at % 2 == 0) continue;  // each is on two of the devices or on one
        SCOPED_TRACE(testing::Message()
                     << item.name << ", " << settings.multiprocessors << " processors, sm_"
                     << settings.arch << ", blocks of " << memory.block_tokens << ", "
                     << memory.more_than_now << " more");
        EmulatedStream stream(settings);
        try {
          problem.check(own_attention_forward, stream, memory);
        } catch (const KernelFault& error) {
          ADD_FAILURE() << error.what();
        }
        if (testing::Test::HasFailure()) break;
      }
    }
  }
}

TEST(EmulatedAttention, PlainKernelsMatchTheCpu) {
  const std::vector<RunSize> runs = {{5, 5}, {1, 70}, {1, 1}, {3, 0}, {0, 4}, {9, 40}};
  check_everywhere({
      {.name = "f32", .runs = runs, .dtype = Dtype::kF32},
      {.name = "f32, odd",
       .runs = runs,
       .heads = 3,
       .kv_heads = 1,
       .head_size = 33,
       .v_size = 17,
       .window = 20,
       .dtype = Dtype::kF32,
       .padding = 3},
      {.name = "bf16, odd",
       .runs = runs,
       .head_size = 20,
       .v_size = 20,
       .softcap = 3,
       .padding = 1},
      {.name = "f32, large",
       .runs = {{2, 20}, {1, 30}},
       .heads = 2,
       .kv_heads = 1,
       .head_size = 256,
       .v_size = 256,
       .dtype = Dtype::kF32},
      {.name = "f32, full", .runs = runs, .window = 7, .causal = false, .dtype = Dtype::kF32},
      {.name = "wide",
       .runs = {{2, 20}},
       .heads = 2,
       .kv_heads = 1,
       .head_size = 584,
       .v_size = 300,
       .dtype = Dtype::kF32},
  });
}

TEST(EmulatedAttention, DecodesMatchTheCpu) {
  const std::vector<RunSize> tokens = {{1, 1}, {1, 64}, {1, 65}, {1, 300}, {1, 0}, {0, 3}};
  check_everywhere({
      {.name = "one head each", .runs = tokens, .heads = 2},
      {.name = "groups of 4", .runs = tokens, .heads = 8},
      {.name = "groups of 8, f16", .runs = tokens, .heads = 8, .kv_heads = 1, .dtype = Dtype::kF16},
      {.name = "80", .runs = {{1, 200}}, .head_size = 80, .v_size = 80},
      {.name = "96", .runs = {{1, 129}}, .head_size = 96, .v_size = 96},
      {.name = "128, window", .runs = tokens, .head_size = 128, .v_size = 128, .window = 100},
      {.name = "192 and 128", .runs = {{1, 140}}, .heads = 2, .head_size = 192, .v_size = 128},
      {.name = "256, softcap",
       .runs = {{1, 140}, {2, 65}},
       .heads = 4,
       .kv_heads = 1,
       .head_size = 256,
       .v_size = 256,
       .softcap = 5},
      {.name = "narrow window", .runs = tokens, .window = 3},
      {.name = "chunks", .runs = {{1, 65}, {1, 300}, {7, 90}}, .window = 63, .chunked = true},
      {.name = "several queries", .runs = {{4, 90}, {7, 7}, {8, 300}}, .heads = 8, .kv_heads = 1},
      {.name = "full", .runs = {{4, 90}, {1, 200}}, .window = 40, .causal = false},
      {.name = "8", .runs = tokens, .head_size = 8, .v_size = 16},
      {.name = "long", .runs = {{1, 700}}, .heads = 2, .kv_heads = 1},
  });
}

TEST(EmulatedAttention, ManyRunsAreSeveralLaunches) {
  std::vector<RunSize> runs;
  for (std::int32_t i = 0; i < 130; ++i) runs.push_back({1, 1 + i % 90});
  Problem problem(
      {.name = "many", .runs = runs, .heads = 2, .kv_heads = 1, .head_size = 16, .v_size = 16});
  for (const Memory& memory : {Memory{}, Memory{16, 30}}) {
    EmulatedStream stream;
    problem.check(own_attention_forward, stream, memory);
  }
}

TEST(EmulatedAttention, PrefillsAndDecodesOfOneCallMatchTheCpu) {
  const std::vector<RunSize> runs = {{70, 70}, {1, 130}, {90, 150}, {0, 9},
                                     {1, 1},   {3, 0},   {33, 65}};
  check_everywhere({
      {.name = "64", .runs = runs},
      {.name = "96, f16",
       .runs = {{70, 70}, {1, 90}, {67, 100}},
       .heads = 2,
       .kv_heads = 2,
       .head_size = 96,
       .v_size = 96,
       .dtype = Dtype::kF16},
      {.name = "128, window",
       .runs = runs,
       .heads = 2,
       .kv_heads = 1,
       .head_size = 128,
       .v_size = 128,
       .window = 70},
      {.name = "192 and 128",
       .runs = {{66, 66}, {1, 70}},
       .heads = 1,
       .kv_heads = 1,
       .head_size = 192,
       .v_size = 128},
      {.name = "256",
       .runs = {{66, 80}, {1, 70}},
       .heads = 1,
       .kv_heads = 1,
       .head_size = 256,
       .v_size = 256},
      {.name = "softcap",
       .runs = runs,
       .heads = 2,
       .kv_heads = 1,
       .head_size = 80,
       .v_size = 80,
       .softcap = 2},
      {.name = "full", .runs = {{66, 80}, {1, 70}}, .causal = false},
  });
}

TEST(EmulatedAttention, LatentDecodesMatchTheCpu) {
  check_everywhere({
      {.name = "576 and 512",
       .runs = {{1, 100}, {1, 1}, {1, 0}, {2, 70}},
       .heads = 4,
       .kv_heads = 1,
       .head_size = 576,
       .v_size = 512,
       .values_in_keys = true},
      {.name = "320 and 256",
       .runs = {{1, 130}, {40, 50}},
       .heads = 3,
       .kv_heads = 1,
       .head_size = 320,
       .v_size = 256,
       .window = 90,
       .dtype = Dtype::kF16,
       .values_in_keys = true},
      {.name = "16 heads",
       .runs = {{1, 200}},
       .heads = 16,
       .kv_heads = 1,
       .head_size = 576,
       .v_size = 512,
       .values_in_keys = true},
  });
}

}  // namespace
}  // namespace bev::cuda_emulation
