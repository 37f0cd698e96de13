// Skinny GEMM for decoding: few rows of a times a weight that is read once, on tensor cores. A warp
// computes tiles of 16 rows of the weight and streams them, with the same columns of a, through a
// cp.async ring of its own, which runs on across tiles. Warps share nothing, except that `parts`
// neighbours may split K of a tile (split-K within the block) and add their sums in shared memory.
// With one part a sum takes K in ascending order, 16 at a time, like mma_tile.cuh.
#pragma once

#include "backend/cuda/attention/attention_mma.cuh"
#include "backend/cuda/device/launch_overlap.cuh"
#include "backend/cuda/device/reduce.cuh"
#include "base/divide.h"

namespace bev::cuda::ring {

constexpr int kRows = 16;                             // of the weight in a tile
constexpr int kDepth = 128, kRowBytes = 2 * kDepth;   // of K in a stage
constexpr int kChunks = kRowBytes / 16, kTokens = 8;  // of a in an mma
constexpr int kMostWarps = 8;

template <class T, class C>
struct Work {
  const T *a, *b, *bias;
  C* c;
  int tokens, depth, columns;  // c [tokens, columns]
  int tiles, parts, stages;
  int prefetched;  // stages of the first tile that go to L2 before a is complete
  std::int64_t a_stride, c_stride;
  float alpha;

  __host__ __device__ int stage_bytes() const { return (kRows + tokens) * kRowBytes; }
};

// cp.async through L1, for what several warps read.
__device__ inline void copy_16_shared(std::uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(valid ? 16 : 0)
               : "memory");
}
__device__ inline void prefetch_line(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

// Chunks of a row are permuted, so that the same chunk of 8 rows lies in different banks.
__device__ inline std::uint32_t chunk_at(std::uint32_t stage, int row, int chunk) {
  return stage + static_cast<std::uint32_t>(row * kRowBytes + (chunk ^ (row & 7)) * 16);
}

// All but the last stages - 2 groups of copies are complete.
__device__ inline void wait_for_stage(int stages) {
  using cuda_attention::wait_copies;
  switch (stages) {
    case 3:
      return wait_copies<1>();
    case 4:
      return wait_copies<2>();
    case 6:
      return wait_copies<4>();
    case 8:
      return wait_copies<6>();
    default:
      return wait_copies<10>();  // 12
  }
}

// One warp with its tiles and its part of K.
template <class T, class C, int kTiles>
class Warp {
 public:
  __device__ Warp(const Work<T, C>& work, std::uint8_t* memory)
      : work_(work), lane_(static_cast<int>(threadIdx.x) % kWarp) {
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
    const int warps = static_cast<int>(blockDim.x) / kWarp, groups = warps / work.parts;
    const int steps = ceil_div(work.depth, kDepth);
    part_ = warp % work.parts;
    group_ = warp / work.parts;
    begin_ = steps * part_ / work.parts;
    end_ = steps * (part_ + 1) / work.parts;
    first_tile_ = static_cast<int>(blockIdx.x) + static_cast<int>(gridDim.x) * group_;
    tile_step_ = static_cast<int>(gridDim.x) * groups;
    ring_ = cuda_attention::shared_address(memory) +
            static_cast<std::uint32_t>(warp * work.stages * work.stage_bytes());
    sums_ = reinterpret_cast<float4*>(memory + warps * work.stages * work.stage_bytes()) +
            group_ * work.parts * kTiles * kWarp;
  }

  __device__ void prefetch() const {
    if (first_tile_ >= work_.tiles) return;
    const int stages = min(work_.prefetched, end_ - begin_);
    constexpr int kLines = kRowBytes / 128;
    for (int i = lane_; i < kRows * kLines * stages; i += kWarp) {
      const int row = i / (kLines * stages), k = begin_ * kDepth + i % (kLines * stages) * 64;
      if (k < work_.depth) prefetch_line(weight_row(first_tile_, row) + k);
    }
  }

  __device__ void run() {
    copy_tile_ = begin_ < end_ ? first_tile_ : work_.tiles;
    copy_step_ = begin_;
    int slot = 0, free = work_.stages - 1;
    for (int i = 0; i < free; ++i) start_copies(i);
    for (int tile = first_tile_; tile < work_.tiles; tile += tile_step_) {
      float sums[kTiles][4] = {};
      for (int step = begin_; step < end_; ++step) {
        wait_for_stage(work_.stages);
        __syncwarp();  // and all lanes have read the stage before, which is copied to next
        start_copies(free);
        multiply(sums, stage_at(slot));
        free = slot;
        slot = slot + 1 == work_.stages ? 0 : slot + 1;
      }
      if (work_.parts > 1) add_parts(sums);
      if (part_ == 0) store(sums, tile);
    }
  }

 private:
  __device__ std::uint32_t stage_at(int slot) const {
    return ring_ + static_cast<std::uint32_t>(slot * work_.stage_bytes());
  }
  // Past the end it is the last row, whose sums are not stored.
  __device__ const T* weight_row(int tile, int row) const {
    return work_.b +
           static_cast<std::int64_t>(min(tile * kRows + row, work_.columns - 1)) * work_.depth;
  }

  // Copies the next stage, if there is one, as a group.
  __device__ void start_copies(int slot) {
    if (copy_tile_ < work_.tiles) {
      const std::uint32_t stage = stage_at(slot);
      const int first = copy_step_ * kDepth, chunk = lane_ % kChunks, k = first + chunk * 8;
      const bool valid = k < work_.depth;
#pragma unroll
      for (int row = 0; row < kRows; row += kWarp / kChunks) {
        const int own = row + lane_ / kChunks;
        cuda_attention::copy_16(chunk_at(stage, own, chunk), weight_row(copy_tile_, own) + k,
                                valid);
      }
      for (int own = lane_ / kChunks; own < work_.tokens; own += kWarp / kChunks) {
        copy_16_shared(chunk_at(stage + kRows * kRowBytes, own, chunk),
                       work_.a + own * work_.a_stride + k, valid);
      }
      if (++copy_step_ == end_) {
        copy_step_ = begin_;
        copy_tile_ += tile_step_;
      }
    }
    cuda_attention::commit_copies();  // maybe empty: wait_for_stage counts groups
  }

  __device__ void multiply(float (&sums)[kTiles][4], std::uint32_t stage) const {
    const std::uint32_t tokens = stage + kRows * kRowBytes;
#pragma unroll
    for (int slice = 0; slice < kDepth / 16; slice += 2) {
      std::uint32_t right[kTiles][4];
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        const int row = min(t * kTokens + lane_ % 8, work_.tokens - 1);
        cuda_attention::load_matrices(right[t], chunk_at(tokens, row, 2 * slice + lane_ / 8));
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        std::uint32_t left[4];
        cuda_attention::load_matrices(left,
                                      chunk_at(stage, lane_ % 16, 2 * (slice + half) + lane_ / 16));
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          cuda_attention::multiply_add<T>(sums[t], left, right[t][2 * half],
                                          right[t][2 * half + 1]);
        }
      }
    }
  }

  // Barrier of the warps that share a tile.
  __device__ void sync_parts() const {
    asm volatile("bar.sync %0, %1;" ::"r"(group_ + 1), "r"(work_.parts * kWarp) : "memory");
  }
  // The first part gets the sums of all, added in order.
  __device__ void add_parts(float (&sums)[kTiles][4]) const {
    float4* own = sums_ + part_ * kTiles * kWarp + lane_;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      own[t * kWarp] = {sums[t][0], sums[t][1], sums[t][2], sums[t][3]};
    }
    sync_parts();
    if (part_ == 0) {
      for (int part = 1; part < work_.parts; ++part) {
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          const float4 other = own[(part * kTiles + t) * kWarp];
          sums[t][0] += other.x;
          sums[t][1] += other.y;
          sums[t][2] += other.z;
          sums[t][3] += other.w;
        }
      }
    }
    sync_parts();
  }

  __device__ void store(const float (&sums)[kTiles][4], int tile) const {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int token = t * kTokens + lane_ % 4 * 2 + i % 2;
        const int column = tile * kRows + lane_ / 4 + i / 2 * 8;
        if (token >= work_.tokens || column >= work_.columns) continue;
        float sum = __fmul_rn(work_.alpha, sums[t][i]);
        if (work_.bias != nullptr) sum += cuda_attention::widen(work_.bias[column]);
        work_.c[token * work_.c_stride + column] = cuda_attention::narrow<C>(sum);
      }
    }
  }

  const Work<T, C>& work_;
  int lane_, part_, group_, begin_, end_, first_tile_, tile_step_;
  int copy_tile_ = 0, copy_step_ = 0;  // of the next copies
  std::uint32_t ring_;
  float4* sums_;
};

// Grid: any number of blocks, to which tiles are dealt in turn.
template <class T, class C, int kTiles>
__global__ void __launch_bounds__(kMostWarps* kWarp)
    kernel(const __grid_constant__ Work<T, C> work) {
  extern __shared__ __align__(128) std::uint8_t memory[];
  Warp<T, C, kTiles> warp(work, memory);
  allow_next_kernel();
  if (work.prefetched > 0) warp.prefetch();
  wait_for_kernel_before();
  warp.run();
}

}  // namespace bev::cuda::ring
