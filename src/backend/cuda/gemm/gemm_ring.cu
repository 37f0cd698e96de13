// Skinny GEMM: how its work is divided, and its launch.
#include <algorithm>

#include "backend/cuda/device/values.cuh"
#include "backend/cuda/gemm/gemm_ring.cuh"
#include "backend/cuda/gemm/linear_gemm.h"
#include "backend/cuda/runtime/queue.h"

namespace bev::cuda {

namespace {

constexpr int kMostTokens = 32;
constexpr int kStages[] = {12, 8, 6, 4, 3};

// Blocks, warps of a block, and its shared memory.
struct Division {
  int blocks = 0, warps = 0, bytes = 0;
};

// One warp nearly saturates its SM; two do. So K is split where a block has few tiles, and not at
// all if `exact`.
int parts_of(int tiles_each, int steps, bool exact) {
  if (exact || tiles_each > 3) return 1;
  int parts = tiles_each == 1 ? 4 : 2;
  while (parts > 1 && 2 * parts > steps) parts /= 2;
  return parts;
}

template <class T, class C>
Division divide(const CudaQueue& queue, ring::Work<T, C>& work, bool exact) {
  Division out;
  out.blocks = std::min(work.tiles, queue.multiprocessors());
  const int tiles_each = ceil_div(work.tiles, out.blocks);
  work.parts = parts_of(tiles_each, ceil_div(work.depth, ring::kDepth), exact);
  // Other blocks and L1 share the memory of an SM.
  constexpr std::size_t kMostBytes = 208 << 10, kReserve = 4 << 10;
  const int room = static_cast<int>(std::min(kMostBytes, queue.shared_memory() - kReserve));
  for (;; work.parts /= 2) {
    for (int groups = std::min(tiles_each, ring::kMostWarps / work.parts); groups > 0; --groups) {
      out.warps = groups * work.parts;
      const int sums = out.warps * ceil_div(work.tokens, ring::kTokens) * kWarp * 16;
      for (int stages : kStages) {
        work.stages = stages;
        out.bytes = out.warps * stages * work.stage_bytes() + sums;
        if (out.bytes <= room) return out;
      }
    }
    BEV_CHECK(work.parts > 1, ErrorKind::kDevice, "CUDA: a product of ", work.tokens,
              " rows needs more shared memory than this device has");
  }
}

template <class T, class C, int kTiles>
void launch(CudaQueue& queue, ring::Work<T, C> work, bool exact) {
  const Division division = divide(queue, work, exact);
  auto* kernel = ring::kernel<T, C, kTiles>;
  check_cuda(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, division.bytes),
             "skinny product: shared memory");
  // What is fetched before the launch may read its input stays within the L2 cache.
  constexpr std::int64_t kMostPrefetched = std::int64_t{16} << 20;
  constexpr int kStageWeights = ring::kRows * ring::kRowBytes;
  const std::int64_t warps = std::int64_t{division.blocks} * division.warps;
  if (queue.captures_behind_kernel()) {
    work.prefetched = static_cast<int>(kMostPrefetched / (warps * kStageWeights));
  }
  launch_overlapped(queue, "skinny product", kernel, static_cast<unsigned>(division.blocks),
                    static_cast<unsigned>(division.warps * kWarp),
                    static_cast<std::size_t>(division.bytes), work);
}

template <class T, class C>
void run(CudaQueue& queue, const LinearGemm& gemm, bool exact) {
  const ring::Work<T, C> work{.a = static_cast<const T*>(gemm.a),
                              .b = static_cast<const T*>(gemm.b),
                              .bias = static_cast<const T*>(gemm.bias),
                              .c = static_cast<C*>(gemm.c),
                              .tokens = static_cast<int>(gemm.m),
                              .depth = static_cast<int>(gemm.k),
                              .columns = static_cast<int>(gemm.n),
                              .tiles = static_cast<int>(ceil_div(gemm.n, ring::kRows)),
                              .parts = 1,
                              .stages = 0,
                              .prefetched = 0,
                              .a_stride = gemm.a_stride,
                              .c_stride = gemm.c_stride,
                              .alpha = gemm.alpha};
  if (work.tokens <= ring::kTokens) return launch<T, C, 1>(queue, work, exact);
  if (work.tokens <= 2 * ring::kTokens) return launch<T, C, 2>(queue, work, exact);
  launch<T, C, kMostTokens / ring::kTokens>(queue, work, exact);
}

template <class T>
void run(CudaQueue& queue, const LinearGemm& gemm, bool exact) {
  if (gemm.out == Dtype::kF32) return run<T, float>(queue, gemm, exact);
  run<T, T>(queue, gemm, exact);
}

}  // namespace

bool gemm_ring_supports(const LinearGemm& gemm) {
  return gemm.has_whole_words() && gemm.m <= kMostTokens;
}

void gemm_ring(const Stream& stream, const LinearGemm& gemm, bool exact) {
  if (gemm.in == Dtype::kBf16) return run<Bf16>(queue_of(stream), gemm, exact);
  run<F16>(queue_of(stream), gemm, exact);
}

}  // namespace bev::cuda
