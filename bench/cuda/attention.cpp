// GPU attention, our kernels and cuDNN: TFLOP/s of causal training shapes, forward and backward,
// and KV cache bandwidth in decoding.
#include <cmath>
#include <cstdio>
#include <vector>

#include "backend/cuda/attention/attention_paths.h"
#include "base/error.h"
#include "gpu_rig.h"

namespace bev {
namespace {

struct Heads {
  std::int64_t q, kv, size;
  std::int64_t q_columns() const { return q * size; }
  std::int64_t kv_columns() const { return kv * size; }
};

AttentionShape shape_of(const Heads& heads, std::span<const AttentionRun> runs,
                        std::int64_t stride) {
  AttentionShape shape;
  shape.runs = runs;
  shape.q_heads = heads.q;
  shape.kv_heads = heads.kv;
  shape.head_size = shape.v_head_size = heads.size;
  shape.q_stride = shape.k_stride = shape.v_stride = stride;
  shape.dtype = Dtype::kBf16;
  shape.rule.scale = 1 / std::sqrt(static_cast<double>(heads.size));
  return shape;
}

void bench_training(Gpu& gpu, int batch, int length, const Heads& heads) {
  std::int64_t rows = std::int64_t{batch} * length;
  std::int64_t stride = heads.q_columns() + 2 * heads.kv_columns();
  std::vector<AttentionRun> runs;
  for (int i = 0; i < batch; ++i)
    runs.push_back({i * length, length, std::int64_t{i} * length, length});
  AttentionShape shape = shape_of(heads, runs, stride);
  Tensor qkv = gpu.noise({rows, stride}), gradient = gpu.empty(Dtype::kBf16, {rows, stride});
  Tensor out = gpu.noise({rows, heads.q_columns()}), dout = gpu.noise({rows, heads.q_columns()});
  Tensor lse = gpu.empty(Dtype::kF32, {rows, heads.q}),
         delta = gpu.empty(Dtype::kF32, {rows, heads.q});
  auto k = [&](const Tensor& x) { return x.view().address(heads.q_columns()); };
  auto v = [&](const Tensor& x) {
    return x.view().address(heads.q_columns() + heads.kv_columns());
  };
  AttentionForwardArgs forward{shape, qkv.view().data, k(qkv), v(qkv), out, lse};
  AttentionBackwardArgs backward{
      shape, qkv.view().data,      k(qkv),      v(qkv),     out, dout, lse,
      delta, gradient.view().data, k(gradient), v(gradient)};
  // Causal: half of the square.
  double work = 2e-12 * batch * length * length * static_cast<double>(heads.q_columns());
  for (bool own : {true, false}) {
    double ahead = gpu.seconds([&] {
      if (own) own_attention_forward(gpu.stream(), forward);
      return own || cudnn_attention_forward(gpu.stream(), forward);
    });
    double back = gpu.seconds([&] {
      if (own) own_attention_backward(gpu.stream(), backward);
      return own || cudnn_attention_backward(gpu.stream(), backward);
    });
    std::printf("%2d x %4d, %2d/%2d heads of %3d, %-5s: forward %4.0f, backward %4.0f TFLOP/s\n",
                batch, length, static_cast<int>(heads.q), static_cast<int>(heads.kv),
                static_cast<int>(heads.size), own ? "own" : "cuDNN", work / ahead,
                2.5 * work / back);
  }
}

void bench_decoding(Gpu& gpu, int batch, int keys, const Heads& heads) {
  std::vector<AttentionRun> runs;
  for (int i = 0; i < batch; ++i) runs.push_back({i, 1, std::int64_t{i} * keys, keys, keys - 1, 0});
  AttentionShape shape = shape_of(heads, runs, heads.kv_columns());
  shape.q_stride = heads.q_columns();
  Tensor q = gpu.noise({batch, heads.q_columns()}), out = gpu.noise({batch, heads.q_columns()});
  Tensor k = gpu.noise({std::int64_t{batch} * keys, heads.kv_columns()});
  Tensor v = gpu.noise({std::int64_t{batch} * keys, heads.kv_columns()});
  Tensor lse = gpu.empty(Dtype::kF32, {batch, heads.q});
  AttentionForwardArgs args{shape, q.view().data, k.view().data, v.view().data, out, lse};
  double time = gpu.seconds([&] {
    own_attention_forward(gpu.stream(), args);
    return true;
  });
  double bytes = static_cast<double>(k.view().bytes() + v.view().bytes());
  std::printf("decoding %2d x %d, %d/%d heads of %d: %5.1f us, %4.2f TB/s\n", batch, keys,
              static_cast<int>(heads.q), static_cast<int>(heads.kv), static_cast<int>(heads.size),
              time * 1e6, bytes / time * 1e-12);
}

// MLA decoding: one cache row of 576 elements per token, shared by all heads.
void bench_latents(Gpu& gpu, int batch, int keys, std::int64_t heads) {
  std::vector<AttentionRun> runs;
  for (int i = 0; i < batch; ++i) runs.push_back({i, 1, std::int64_t{i} * keys, keys, keys - 1, 0});
  AttentionShape shape = shape_of({heads, 1, 576}, runs, 576);
  shape.v_head_size = 512;
  shape.q_stride = heads * 576;
  Tensor q = gpu.noise({batch, heads * 576}), out = gpu.noise({batch, heads * 512});
  Tensor latents = gpu.noise({std::int64_t{batch} * keys, 576});
  Tensor lse = gpu.empty(Dtype::kF32, {batch, heads});
  const void* rows = latents.view().data;
  AttentionForwardArgs args{shape, q.view().data, rows, rows, out, lse};
  double time = gpu.seconds([&] {
    own_attention_forward(gpu.stream(), args);
    return true;
  });
  std::printf("latents  %2d x %d, %d heads: %6.1f us, %4.2f TB/s\n", batch, keys,
              static_cast<int>(heads), time * 1e6,
              static_cast<double>(latents.view().bytes()) / time * 1e-12);
}

void run(Gpu& gpu) {
  bench_training(gpu, 1, 8192, {32, 8, 128});
  bench_training(gpu, 4, 4096, {32, 8, 64});
  bench_training(gpu, 32, 1024, {14, 2, 64});
  bench_training(gpu, 32, 1024, {12, 12, 64});
  for (int batch : {1, 8, 64}) bench_decoding(gpu, batch, 8192, {32, 8, 128});
  for (int heads : {16, 128}) {
    for (int keys : {8192, 65536}) {
      bench_latents(gpu, 1, keys, heads);
      bench_latents(gpu, 8, keys, heads);
    }
  }
}

}  // namespace
}  // namespace bev

int main() { return bev::gpu_main("attention", bev::run); }
