// The attention backward kernels against the CPU backend in f64, with the forward's results rounded
// as the device has them.
#include <gtest/gtest.h>

#include "backend/cuda/attention/attention_paths.h"
#include "tests/cuda_emulation/emulated_stream.h"

namespace bev::cuda_emulation {
namespace {
using namespace kernel_test;

struct Case {
  std::int64_t heads, kv_heads, head_size, v_size;
  std::int64_t window = -1;
  double softcap = 0, dropout = 0;
  bool causal = true;
  Dtype dtype = Dtype::kBf16;
  bool chunked = false;
};

// A sequence, one that continues another, and a short one.
const std::vector<AttentionRun> kRuns = {
    {.q_begin = 0, .q_count = 70, .k_begin = 0, .k_count = 70},
    {.q_begin = 70, .q_count = 20, .k_begin = 70, .k_count = 90, .offset = 70, .key_position = 5},
    {.q_begin = 90, .q_count = 3, .k_begin = 160, .k_count = 3}};
constexpr std::int64_t kQueries = 93, kKeys = 163;

struct Tensors {
  void *q, *k, *v;
  View out, dout, lse, delta;
  void *dq, *dk, *dv;
};

class Problem {
 public:
  explicit Problem(const Case& item)
      : item_(item),
        shape_{.runs = kRuns,
               .q_heads = item.heads,
               .kv_heads = item.kv_heads,
               .head_size = item.head_size,
               .v_head_size = item.v_size,
               .q_stride = item.heads * item.head_size,
               .k_stride = item.kv_heads * item.head_size + 8,
               .v_stride = item.kv_heads * item.v_size,
               .dtype = item.dtype,
               .rule = {.scale = 1 / std::sqrt(static_cast<double>(item.head_size)),
                        .softcap = item.softcap,
                        .window = item.window,
                        .chunked = item.chunked,
                        .causal = item.causal,
                        .dropout = item.dropout},
               .random = {}},
        samples_(std::vector<std::int32_t>(kQueries, 3)),
        positions_(std::vector<std::int32_t>(kQueries, 0)),
        key_(std::vector<std::uint64_t>{77}) {
    for (std::int32_t i = 0; i < kQueries; ++i) positions_.data()[i] = 2 * i;
    shape_.random = {.random_key = key_.data(),
                     .sample = samples_.data(),
                     .position = positions_.data(),
                     .stream = 9};
  }

  void check(const Stream& stream) {
    const std::int64_t outs = item_.heads * item_.v_size;
    Buffer q = random_buffer(item_.dtype, {kQueries, shape_.q_stride}, 1, 2);
    Buffer k = random_buffer(item_.dtype, {kKeys, shape_.k_stride}, 2, 2);
    Buffer v = random_buffer(item_.dtype, {kKeys, shape_.v_stride}, 3);
    Buffer dout = random_buffer(item_.dtype, {kQueries, outs}, 4);
    Buffer wide_q = wide(q), wide_k = wide(k), wide_v = wide(v), wide_dout = wide(dout);
    Buffer out(Dtype::kF64, {kQueries, outs}), lse(Dtype::kF64, {kQueries, item_.heads});
    Buffer delta(Dtype::kF64, {kQueries, item_.heads});
    Buffer dq(Dtype::kF64, q.view().shape), dk(Dtype::kF64, k.view().shape);
    Buffer dv(Dtype::kF64, v.view().shape);
    ThreadPool pool(1);
    AttentionShape wide_shape = shape_;
    wide_shape.dtype = Dtype::kF64;
    cpu_kernels().attention.forward({.pool = &pool}, {.shape = wide_shape,
                                                      .q = wide_q.view().data,
                                                      .k = wide_k.view().data,
                                                      .v = wide_v.view().data,
                                                      .out = out.view(),
                                                      .lse = lse.view()});
    Buffer rounded(item_.dtype, out.view().shape, out.values());
    Buffer narrow_lse(Dtype::kF32, lse.view().shape, lse.values());
    Buffer wide_out = wide(rounded);
    backward(cpu_kernels().attention.backward, {.pool = &pool}, wide_shape,
             {wide_q.view().data, wide_k.view().data, wide_v.view().data, wide_out.view(),
              wide_dout.view(), lse.view(), delta.view(), dq.view().data, dk.view().data,
              dv.view().data});
    DeviceTensor device_q(q.view()), device_k(k.view()), device_v(v.view());
    DeviceTensor device_out(rounded.view()), device_dout(dout.view()),
        device_lse(narrow_lse.view());
    DeviceTensor device_delta(Dtype::kF32, {kQueries, item_.heads});
    DeviceTensor got_dq(item_.dtype, q.view().shape), got_dk(item_.dtype, k.view().shape);
    DeviceTensor got_dv(item_.dtype, v.view().shape);
    backward(
        own_attention_backward, stream, shape_,
        {device_q.data(), device_k.data(), device_v.data(), device_out.view(), device_dout.view(),
         device_lse.view(), device_delta.view(), got_dq.data(), got_dk.data(), got_dv.data()});
    EXPECT_TRUE(got_dq.intact() && got_dk.intact() && got_dv.intact() && device_delta.intact());
    const double tolerance = item_.dtype == Dtype::kF32 ? 2e-5 : 12 * epsilon_of(item_.dtype);
    expect_near(got_dq.values(), dq.values(), tolerance);
    expect_near(got_dk.values(), dk.values(), tolerance);
    expect_near(got_dv.values(), dv.values(), tolerance);
  }

 private:
  static Buffer wide(Buffer& from) { return Buffer(Dtype::kF64, from.view().shape, from.values()); }
  static void backward(void (*call)(const Stream&, const AttentionBackwardArgs&),
                       const Stream& stream, const AttentionShape& shape, const Tensors& at) {
    call(stream, {.shape = shape,
                  .q = at.q,
                  .k = at.k,
                  .v = at.v,
                  .out = at.out,
                  .dout = at.dout,
                  .lse = at.lse,
                  .delta = at.delta,
                  .dq = at.dq,
                  .dk = at.dk,
                  .dv = at.dv});
  }

  Case item_;
  AttentionShape shape_;
  DeviceArray<std::int32_t> samples_, positions_;
  DeviceArray<std::uint64_t> key_;
};

TEST(EmulatedAttentionBackward, MatchesTheCpu) {
  int at = 0;
  for (const Case& item : std::vector<Case>{{2, 1, 64, 64},
                                            {2, 2, 32, 24, 20, 0, 0, true, Dtype::kF16},
                                            {2, 1, 96, 96, -1, 0, 0, false},
                                            {1, 1, 128, 128, 30, 4},
                                            {2, 1, 64, 64, -1, 0, 0.25},
                                            {1, 1, 192, 128},
                                            {1, 1, 256, 256, -1, 3},
                                            {2, 1, 40, 40, -1, 0, 0.5, true, Dtype::kF32},
                                            {2, 1, 64, 64, 23, 0, 0, true, Dtype::kBf16, true},
                                            {2, 2, 20, 12, 9, 2, 0, true, Dtype::kF32}}) {
    SCOPED_TRACE(testing::Message() << "heads of " << item.head_size << ", softcap " << item.softcap
                                    << ", dropout " << item.dropout);
    EmulatedStream stream({.schedule = static_cast<Schedule>(++at % 3)});
    try {
      Problem(item).check(stream);
    } catch (const KernelFault& error) {
      ADD_FAILURE() << error.what();
    }
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace bev::cuda_emulation
