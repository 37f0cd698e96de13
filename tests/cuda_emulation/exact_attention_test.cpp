// The exact attention of CUDA has the same bits whole, in chunks, token by token, in a batch and
// paged.
#include <gtest/gtest.h>

#include "backend/cuda/attention/attention_paths.h"
#include "tests/backend_cpu/paged_cache.h"
#include "tests/cuda_emulation/emulated_stream.h"

namespace bev::cuda_emulation {
namespace {
using namespace kernel_test;

struct Case {
  std::int64_t heads, kv_heads, head_size;
  std::int64_t window = -1;
  double softcap = 0;
};

constexpr std::int32_t kTokens = 133;

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
        k_(random_buffer(dtype, {kTokens, shape_.k_stride}, 2, 2)),
        v_(random_buffer(dtype, {kTokens, shape_.v_stride}, 3)),
        cache_(shape_, whole(), k_, v_, 16),
        device_q_(random_buffer(dtype, {kTokens, shape_.q_stride}, 1, 2).view()),
        device_k_(k_.view()),
        device_v_(v_.view()),
        paged_k_(cache_.k.view()),
        paged_v_(cache_.v.view()),
        table_(cache_.table) {}

  // Bits of out and lse of all tokens, computed in calls of chunks of these sizes in turn.
  std::string forward(Stream stream, const std::vector<std::int32_t>& chunks, bool paged) {
    DeviceTensor out(shape_.dtype, {kTokens, shape_.q_stride});
    DeviceTensor lse(Dtype::kF32, {kTokens, shape_.q_heads});
    std::int32_t begin = 0;
    for (std::size_t i = 0; begin < kTokens; ++i) {
      const auto end = std::min(begin + chunks[i % chunks.size()], kTokens);
      call(stream, {{.q_begin = begin, .q_count = end - begin, .k_count = end, .offset = begin}},
           paged, out, lse);
      begin = end;
    }
    return out.bits() + lse.bits();
  }
  // All tokens in one call, each as a run of its own.
  std::string forward_batch(Stream stream) {
    DeviceTensor out(shape_.dtype, {kTokens, shape_.q_stride});
    DeviceTensor lse(Dtype::kF32, {kTokens, shape_.q_heads});
    std::vector<AttentionRun> runs;
    for (std::int32_t t = 0; t < kTokens; ++t) {
      runs.push_back({.q_begin = t, .q_count = 1, .k_count = t + 1, .offset = t});
    }
    call(stream, runs, false, out, lse);
    return out.bits() + lse.bits();
  }

 private:
  static std::vector<AttentionRun> whole() { return {{.q_count = kTokens, .k_count = kTokens}}; }

  void call(const Stream& stream, const std::vector<AttentionRun>& runs, bool paged,
            DeviceTensor& out, DeviceTensor& lse) {
    AttentionShape shape = shape_;
    shape.runs = runs;
    KeyPages pages;
    if (paged) pages = {table_.data(), cache_.pages.stride, cache_.pages.block_tokens};
    cuda_exact_attention().forward(stream, {.shape = shape,
                                            .q = device_q_.data(),
                                            .k = (paged ? paged_k_ : device_k_).data(),
                                            .v = (paged ? paged_v_ : device_v_).data(),
                                            .out = out.view(),
                                            .lse = lse.view(),
                                            .pages = pages});
  }

  AttentionShape shape_;
  Buffer k_, v_;
  PagedCache cache_;
  DeviceTensor device_q_, device_k_, device_v_, paged_k_, paged_v_;
  DeviceArray<std::int32_t> table_;
};

void expect_equal_bits(const Case& item, Dtype dtype) {
  SCOPED_TRACE(testing::Message() << name_of(dtype) << ", " << item.heads << " heads of "
                                  << item.head_size << ", window " << item.window << ", softcap "
                                  << item.softcap);
  EmulatedStream stream;
  Sequence sequence(item, dtype);
  const std::string want = sequence.forward(stream, {kTokens}, false);
  EXPECT_TRUE(sequence.forward(stream, {kTokens}, true) == want) << "whole, paged";
  EXPECT_TRUE(sequence.forward(stream, {1}, true) == want) << "token by token";
  EXPECT_TRUE(sequence.forward(stream, {100, 1, 5, 17, 2}, true) == want) << "chunks, paged";
  EXPECT_TRUE(sequence.forward(stream, {70, 3, 30}, false) == want) << "chunks";
  EXPECT_TRUE(sequence.forward_batch(stream) == want) << "a batch of tokens";
}

TEST(EmulatedExactAttention, ChunksAndSingleTokensHaveTheBitsOfTheWhole) {
  for (const Case& item : std::vector<Case>{{4, 2, 64},
                                            {3, 1, 80},
                                            {2, 1, 96, -1, 4.0},
                                            {2, 1, 128, 70},
                                            {1, 1, 192},
                                            {1, 1, 256, 30, 3.0}}) {
    expect_equal_bits(item, Dtype::kBf16);
  }
  expect_equal_bits({8, 1, 64, 100}, Dtype::kF16);
}

TEST(EmulatedExactAttention, PlainKernelsToo) {
  expect_equal_bits({2, 1, 64, 50}, Dtype::kF32);
  expect_equal_bits({3, 1, 20, -1, 3.0}, Dtype::kBf16);
}

}  // namespace
}  // namespace bev::cuda_emulation
