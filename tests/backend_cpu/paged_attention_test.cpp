// Attention over a paged cache has the bits of attention over a contiguous one.
#include <gtest/gtest.h>

#include "tests/backend_cpu/kernel_fixture.h"
#include "tests/backend_cpu/paged_cache.h"

namespace bev {
namespace {
using namespace kernel_test;

struct Case {
  const char* name;
  std::int64_t heads, kv_heads, head_size, v_size;
  std::int64_t window = -1;
  double softcap = 0;
  bool causal = true;
  bool v_in_k = false;  // MLA: values are the first columns of the keys
};

const std::vector<Case> kCases = {
    {"plain", 2, 2, 64, 64},
    {"grouped", 6, 2, 80, 80},
    {"one kv head, odd sizes", 5, 1, 33, 17},
    {"window", 4, 2, 32, 32, 40},
    {"narrow window", 4, 4, 16, 16, 3},
    {"softcap", 4, 2, 128, 128, -1, 5.0},
    {"window and softcap", 4, 1, 48, 48, 70, 2.0},
    {"large heads", 2, 1, 256, 256},
    {"full", 3, 3, 24, 24, -1, 0, false},
    {"latents", 4, 1, 80, 64, -1, 0, true, true},
    {"wide latents", 6, 1, 576, 512, -1, 0, true, true},
    {"wide latents, window", 2, 1, 320, 320, 20, 0, true, true},
};

// Prefills, chunks with earlier keys, decodes, and runs without keys or queries.
std::vector<AttentionRun> runs_of_a_batch() {
  std::vector<AttentionRun> runs;
  std::int32_t q = 0;
  std::int64_t k = 0;
  for (auto [queries, keys] : std::vector<std::pair<std::int32_t, std::int32_t>>{
           {70, 70}, {1, 130}, {1, 1}, {20, 150}, {0, 9}, {3, 0}, {1, 64}, {3, 128}, {33, 65}}) {
    runs.push_back({.q_begin = q,
                    .q_count = queries,
                    .k_begin = k,
                    .k_count = keys,
                    .offset = keys - queries});
    q += queries;
    k += keys;
  }
  return runs;
}

struct Batch {
  std::vector<AttentionRun> runs = runs_of_a_batch();
  AttentionShape shape;
  std::int64_t q_rows = runs.back().q_begin + runs.back().q_count;
  std::int64_t k_rows = runs.back().k_begin + runs.back().k_count;
  Buffer q, k, v;

  Batch(const Case& item, Dtype dtype)
      : shape{.runs = runs,
              .q_heads = item.heads,
              .kv_heads = item.kv_heads,
              .head_size = item.head_size,
              .v_head_size = item.v_size,
              .q_stride = item.heads * item.head_size,
              .k_stride = item.kv_heads * item.head_size + 3,
              .v_stride = item.kv_heads * item.v_size + 1,
              .dtype = dtype,
              .rule = {.scale = 1 / std::sqrt(static_cast<double>(item.head_size)),
                       .softcap = item.softcap,
                       .window = item.window,
                       .causal = item.causal},
              .random = {}},
        q(random_buffer(dtype, {q_rows, shape.q_stride}, 1)),
        k(random_buffer(dtype, {k_rows, shape.k_stride}, 2)),
        v(random_buffer(dtype, {k_rows, shape.v_stride}, 3)) {
    if (!item.v_in_k) return;
    shape.v_stride = shape.k_stride;
    v = k;
  }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  struct Memory {
    Buffer &k, &v;
    KeyPages pages = {};
  };
  // Bits of out and lse.
  std::string forward(const AttentionKernels& kernels, const Memory& memory,
                      const AttentionRun* device_runs = nullptr) {
    ThreadPool pool(2);
    Buffer out(shape.dtype, {q_rows, shape.q_heads * shape.v_head_size});
    Buffer lse(accumulate_dtype(shape.dtype), {q_rows, shape.q_heads});
    kernels.forward({.pool = &pool}, {.shape = shape,
                                      .q = q.view().data,
                                      .k = memory.k.view().data,
                                      .v = memory.v.view().data,
                                      .out = out.view(),
                                      .lse = lse.view(),
                                      .device_runs = device_runs,
                                      .pages = memory.pages});
    EXPECT_TRUE(out.guards_intact() && lse.guards_intact());
    for (double value : out.values()) EXPECT_TRUE(std::isfinite(value));
    return out.bits() + lse.bits();
  }
  // The first key that a query of each run sees.
  std::vector<std::int64_t> first_keys() const {
    std::vector<std::int64_t> keys;
    for (const AttentionRun& run : runs) {
      keys.push_back(shape.rule.window < 0 ? 0 : run.offset - shape.rule.window);
    }
    return keys;
  }
};

// Calls body(attention) for the fast and the exact tables of every level.
template <class Body>
void for_tables(const Body& body) {
  for (CpuLevel level : levels()) {
    for (bool exact : {false, true}) {
      SCOPED_TRACE(testing::Message() << "level " << static_cast<int>(level) << " exact " << exact);
      body((exact ? cpu_exact_kernels(level) : cpu_kernels(level)).attention);
    }
  }
}

class PagedCaches : public testing::TestWithParam<Dtype> {};

TEST_P(PagedCaches, HaveTheBitsOfContiguousOnes) {
  for (const Case& item : kCases) {
    SCOPED_TRACE(item.name);
    Batch batch(item, GetParam());
    std::vector<std::string> contiguous;
    for_tables([&](const AttentionKernels& kernels) {
      contiguous.push_back(batch.forward(kernels, {batch.k, batch.v}));
    });
    for (std::int64_t block_tokens : {1, 4, 16, 64, 128}) {
      PagedCache cache(batch.shape, batch.runs, batch.k, batch.v, block_tokens, batch.first_keys());
      std::size_t table = 0;
      for_tables([&](const AttentionKernels& kernels) {
        EXPECT_TRUE(batch.forward(kernels, {cache.k, cache.v, cache.pages}) == contiguous[table++])
            << "blocks of " << block_tokens;
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, PagedCaches, testing::ValuesIn(kFloats),
                         [](const auto& test) { return std::string(name_of(test.param)); });

// The shape's counts are upper bounds: what a decode step is captured with.
TEST(PagedAttention, ReadsTheProgressOfRunsFromTheDevice) {
  for (const Case& item : kCases) {
    SCOPED_TRACE(item.name);
    Batch batch(item, Dtype::kBf16);
    const std::vector<AttentionRun> now = batch.runs;
    PagedCache cache(batch.shape, now, batch.k, batch.v, 16);
    std::vector<AttentionRun> bounds = now;
    for (AttentionRun& run : bounds) {
      run.k_count += 37;
      run.offset += 37;
    }
    for_tables([&](const AttentionKernels& kernels) {
      batch.shape.runs = now;
      const std::string want = batch.forward(kernels, {batch.k, batch.v});
      batch.shape.runs = bounds;
      EXPECT_TRUE(batch.forward(kernels, {batch.k, batch.v}, now.data()) == want);
      EXPECT_TRUE(batch.forward(kernels, {cache.k, cache.v, cache.pages}, now.data()) == want);
    });
  }
}

TEST(PagedAttention, QueriesWithoutKeysGetZeros) {
  Batch batch(kCases[0], Dtype::kF32);
  batch.runs = {{.q_begin = 0, .q_count = 3, .k_count = 0, .offset = -3},
                {.q_begin = 3, .q_count = 0, .k_count = 0},
                {.q_begin = 3, .q_count = 70, .k_count = 0, .offset = -70}};
  batch.shape.runs = batch.runs;
  batch.q_rows = 73;
  const std::vector<std::int32_t> table(3, -1);
  for_tables([&](const AttentionKernels& kernels) {
    ThreadPool pool(2);
    Buffer out(Dtype::kF32, {73, 128}), lse(Dtype::kF32, {73, 2});
    kernels.forward({.pool = &pool},
                    {.shape = batch.shape,
                     .q = batch.q.view().data,
                     .k = batch.k.view().data,
                     .v = batch.v.view().data,
                     .out = out.view(),
                     .lse = lse.view(),
                     .pages = {.table = table.data(), .stride = 1, .block_tokens = 16}});
    EXPECT_EQ(out.values(), std::vector<double>(73 * 128, 0.0));
    EXPECT_EQ(lse.values(), std::vector<double>(73 * 2, -std::numeric_limits<double>::infinity()));
  });
}

TEST(PagedAttention, RefusesBlocksThatAreNotAPowerOfTwo) {
  Batch batch(kCases[0], Dtype::kF32);
  PagedCache cache(batch.shape, batch.runs, batch.k, batch.v, 4);
  for (std::int64_t block_tokens : {0, 3, 48}) {
    cache.pages.block_tokens = block_tokens;
    EXPECT_THROW(batch.forward(cpu_kernels().attention, {cache.k, cache.v, cache.pages}), Error);
  }
}

}  // namespace
}  // namespace bev
