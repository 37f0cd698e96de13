// Exact attention: a query has the same bits in a whole sequence, in chunks, alone with a KV cache,
// and in any batch.
#include <gtest/gtest.h>

#include "tests/backend_cpu/kernel_fixture.h"
#include "tests/backend_cpu/paged_cache.h"

namespace bev {
namespace {
using namespace kernel_test;

struct Case {
  std::int64_t heads, kv_heads, head_size;
  std::int64_t window = -1;
  double softcap = 0;
};

const std::vector<Case> kCases = {
    {2, 2, 16},          {4, 2, 64},          {3, 1, 80},      {4, 4, 96},          {2, 1, 128},
    {2, 1, 256},         {4, 2, 64, 50},      {2, 1, 80, 130}, {6, 2, 96, -1, 4.0}, {2, 2, 128, 0},
    {5, 1, 16, 33, 3.0}, {40, 1, 16, 70},  // several blocks of lanes for few queries
    {2, 1, 320},         {2, 1, 320, 45, 3.0}};

constexpr std::int64_t kTokens = 171;

// Keys of a longer sequence are in the same rows for each way of computing.
class Sequence {
 public:
  Sequence(const Case& item, Dtype dtype)
      : shape_{.runs = {},
               .q_heads = item.heads,
               .kv_heads = item.kv_heads,
               .head_size = item.head_size,
               .v_head_size = item.head_size,
               .q_stride = item.heads * item.head_size,
               .k_stride = item.kv_heads * item.head_size,
               .v_stride = item.kv_heads * item.head_size,
               .dtype = dtype,
               .rule = {.scale = 1 / std::sqrt(static_cast<double>(item.head_size)),
                        .softcap = item.softcap,
                        .window = item.window},
               .random = {}},
        q_(random_buffer(dtype, {kTokens, shape_.q_stride}, 1, 2)),
        k_(random_buffer(dtype, {kTokens, shape_.k_stride}, 2, 2)),
        v_(random_buffer(dtype, {kTokens, shape_.v_stride}, 3)),
        out_(dtype, {kTokens, shape_.q_stride}),
        lse_(accumulate_dtype(dtype), {kTokens, shape_.q_heads}),
        cache_(shape_, whole(), k_, v_, 16) {}

  static std::vector<AttentionRun> whole() { return {{.q_count = kTokens, .k_count = kTokens}}; }

  // Bits of out and lse of all tokens, computed in calls of chunks of these sizes in turn.
  std::string forward(const AttentionKernels& kernels, int threads,
                      const std::vector<std::int32_t>& chunks, bool paged) {
    ThreadPool pool(threads);
    out_ = Buffer(shape_.dtype, out_.view().shape);
    lse_ = Buffer(lse_.view().dtype, lse_.view().shape);
    std::int32_t begin = 0;
    for (std::size_t i = 0; begin < kTokens; ++i) {
      const auto end =
          std::min<std::int32_t>(begin + chunks[i % chunks.size()], static_cast<int>(kTokens));
      const std::vector<AttentionRun> runs = {
          {.q_begin = begin, .q_count = end - begin, .k_count = end, .offset = begin}};
      call(kernels, pool, runs, paged);
      begin = end;
    }
    return out_.bits() + lse_.bits();
  }
  // All tokens in one call, each as a run of its own.
  std::string forward_batch(const AttentionKernels& kernels, int threads) {
    ThreadPool pool(threads);
    std::vector<AttentionRun> runs;
    for (std::int32_t t = 0; t < kTokens; ++t) {
      runs.push_back({.q_begin = t, .q_count = 1, .k_count = t + 1, .offset = t});
    }
    call(kernels, pool, runs, false);
    return out_.bits() + lse_.bits();
  }

 private:
  void call(const AttentionKernels& kernels, ThreadPool& pool,
            const std::vector<AttentionRun>& runs, bool paged) {
    AttentionShape shape = shape_;
    shape.runs = runs;
    kernels.forward({.pool = &pool}, {.shape = shape,
                                      .q = q_.view().data,
                                      .k = (paged ? cache_.k : k_).view().data,
                                      .v = (paged ? cache_.v : v_).view().data,
                                      .out = out_.view(),
                                      .lse = lse_.view(),
                                      .pages = paged ? cache_.pages : KeyPages{}});
  }

  AttentionShape shape_;
  Buffer q_, k_, v_, out_, lse_;
  PagedCache cache_;
};

class ExactAttention : public testing::TestWithParam<Dtype> {};

TEST_P(ExactAttention, ChunksAndSingleTokensHaveTheBitsOfTheWhole) {
  for (const Case& item : kCases) {
    Sequence sequence(item, GetParam());
    for (CpuLevel level : levels()) {
      SCOPED_TRACE(testing::Message()
                   << item.heads << " heads of " << item.head_size << ", window " << item.window
                   << ", softcap " << item.softcap << ", level " << static_cast<int>(level));
      const AttentionKernels& kernels = cpu_exact_kernels(level).attention;
      const std::string want = sequence.forward(kernels, 1, {kTokens}, false);
      for (bool paged : {false, true}) {
        EXPECT_TRUE(sequence.forward(kernels, 2, {kTokens}, paged) == want) << "whole";
        EXPECT_TRUE(sequence.forward(kernels, 1, {1}, paged) == want) << "token by token";
        EXPECT_TRUE(sequence.forward(kernels, 2, {64}, paged) == want) << "aligned chunks";
        EXPECT_TRUE(sequence.forward(kernels, 2, {100, 1, 5, 17, 2}, paged) == want) << "chunks";
      }
      EXPECT_TRUE(sequence.forward_batch(kernels, 3) == want) << "a batch of tokens";
      if (HasFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, ExactAttention, testing::ValuesIn(kFloats),
                         [](const auto& test) { return std::string(name_of(test.param)); });

}  // namespace
}  // namespace bev
