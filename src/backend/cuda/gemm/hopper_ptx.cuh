// PTX wrappers for Hopper: mbarriers with transaction counts, TMA loads and stores (cp.async.bulk),
// cluster-wide shared memory, and wgmma on operands in shared memory. Only code compiled for sm_90a
// may call them.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "backend/cuda/attention/attention_mma.cuh"
#include "tensor/fp8.h"

namespace bev::cuda::hopper {

using cuda_attention::shared_address;

// mbarrier in shared memory. Its phase parity alternates 0, 1, 0, 1, ...
__device__ inline void init_mbarrier(std::uint64_t& barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&barrier)),
               "r"(arrivals));
}
// Makes initialised barriers visible to the async proxy (TMA) and the cluster.
__device__ inline void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ inline void arrive(std::uint64_t& barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&barrier))
               : "memory");
}
// Arrives and adds `bytes` to the transaction count that the phase waits for.
__device__ inline void arrive_expect_tx(std::uint64_t& barrier, int bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)),
      "r"(bytes)
      : "memory");
}
// Waits until the phase of that parity has completed.
__device__ inline void wait(std::uint64_t& barrier, int phase) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}" ::"r"(shared_address(&barrier)),
      "r"(phase)
      : "memory");
}

// Rank of this block (CTA) in its cluster.
__device__ inline int cluster_rank() {
  int rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// Barrier over all threads of the cluster.
__device__ inline void cluster_sync() {
  __syncwarp();
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
}
// Shared-memory address in block `rank` of the variable that this block has at `here`.
__device__ inline std::uint32_t address_in(int rank, const void* here) {
  std::uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(here)), "r"(rank));
  return there;
}
__device__ inline void store_word(std::uint32_t address, std::uint32_t word) {
  asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(address), "r"(word) : "memory");
}
// Arrives at the barrier of block `rank`.
__device__ inline void arrive_in(int rank, const std::uint64_t& barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(address_in(rank, &barrier))
               : "memory");
}
// Same with release semantics at cluster scope: what this thread stored to that block's shared
// memory is visible to threads that wait(). Slow, because it orders all earlier stores of the
// thread.
__device__ inline void publish_in(int rank, const std::uint64_t& barrier) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(
                   address_in(rank, &barrier))
               : "memory");
}

// Destination of a TMA load and the barrier that counts its bytes: in this block or, as a
// multicast, at the same offsets in all blocks of the cluster whose bits are set.
struct TmaDestination {
  void* to;
  std::uint64_t& barrier;
  std::uint16_t blocks = 0;  // 0: this block only
};

#define BEV_START_TMA_LOAD(kind, coordinates, mask, ...)                                      \
  asm volatile("cp.async.bulk.tensor." kind " [%0], [%1, {" coordinates "}], [%2]" mask       \
               ";" ::"r"(shared_address(destination.to)),                                     \
               "l"(&map), "r"(shared_address(&destination.barrier)), "h"(destination.blocks), \
               __VA_ARGS__                                                                    \
               : "memory")
#define BEV_TMA_LOAD(dims, coordinates, ...)                                                   \
  do {                                                                                         \
    if (destination.blocks == 0) {                                                             \
      BEV_START_TMA_LOAD(dims ".shared::cluster.global.tile.mbarrier::complete_tx::bytes",     \
                         coordinates, "", __VA_ARGS__);                                        \
    } else {                                                                                   \
      BEV_START_TMA_LOAD(                                                                      \
          dims ".shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster", \
          coordinates, ", %3", __VA_ARGS__);                                                   \
    }                                                                                          \
  } while (false)

// TMA load of the box at these coordinates, innermost first; elements outside the tensor read as
// zero.
__device__ inline void tma_load(const TmaDestination& destination, const CUtensorMap& map, int x,
                                int y) {
  BEV_TMA_LOAD("2d", "%4, %5", "r"(x), "r"(y));
}
__device__ inline void tma_load(const TmaDestination& destination, const CUtensorMap& map, int x,
                                int y, int z) {
  BEV_TMA_LOAD("3d", "%4, %5, %6", "r"(x), "r"(y), "r"(z));
}
__device__ inline void tma_load(const TmaDestination& destination, const CUtensorMap& map, int x,
                                int y, int z, int w) {
  BEV_TMA_LOAD("4d", "%4, %5, %6, %7", "r"(x), "r"(y), "r"(z), "r"(w));
}

#undef BEV_TMA_LOAD
#undef BEV_START_TMA_LOAD

// Bulk copy of contiguous bytes; size and both addresses are multiples of 16.
__device__ inline void tma_load_bytes(void* to, const void* from, int bytes,
                                      std::uint64_t& barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];" ::"r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(&barrier))
      : "memory");
}

// Makes the shared-memory writes of this thread visible to the async proxy (TMA).
__device__ inline void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// TMA store; elements outside the tensor are not written. Each store is a bulk group of its own:
// after wait_tma_stores_read<n> all but the last n groups of this thread have been read from shared
// memory.
__device__ inline void tma_store(const void* from, const CUtensorMap& map, int x, int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];\n"
      "cp.async.bulk.commit_group;" ::"l"(&map),
      "r"(shared_address(from)), "r"(x), "r"(y), "r"(z)
      : "memory");
}
__device__ inline void tma_store(const void* from, const CUtensorMap& map, int x, int y, int z,
                                 int w) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];\n"
      "cp.async.bulk.commit_group;" ::"l"(&map),
      "r"(shared_address(from)), "r"(x), "r"(y), "r"(z), "r"(w)
      : "memory");
}
template <int kPending>
__device__ void wait_tma_stores_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// Redistribution of registers between warpgroups (setmaxnreg); all warps of the warpgroup call it.
template <int kRegisters>
__device__ void warpgroup_reg_dealloc() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ void warpgroup_reg_alloc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// wgmma matrix descriptor: rows of 128 bytes with the 128-byte swizzle, starting at a multiple of
// 1024 bytes. With kInnerRows (MN-major) a row holds 64 elements of M or N for one k, and the next
// 64 follow `next_bytes` later; otherwise (K-major) it holds 64 elements of K.
__device__ inline std::uint64_t operand(std::uint32_t address, int next_bytes) {
  constexpr std::uint64_t kSwizzled128 = std::uint64_t{1} << 62;
  constexpr std::uint64_t kEightRows = std::uint64_t{1024 / 16} << 32;
  return kSwizzled128 | kEightRows | static_cast<std::uint64_t>(next_bytes / 16) << 16 |
         (address & 0x3ffff) / 16;
}
// Descriptor advance for 16 elements of K.
template <bool kInnerRows>
inline constexpr int kSliceBytes = kInnerRows ? 16 * 128 : 16 * 2;

// Accumulator [64, 256] of a warpgroup: warp w has rows 16 w to 16 w + 15; in each 8 columns lane l
// holds rows l / 4 and l / 4 + 8, columns 2 * (l % 4) and the next.
struct WideSums {
  float at[128];

  // Compiler barrier between the last wgmma and the use of its sums, a dependency that the compiler
  // does not see.
  __device__ void settle() {
#pragma unroll
    for (float& sum : at) asm volatile("" : "+f"(sum)::"memory");
  }
  // Volatile, so that it stays inside its branch: the compiler would otherwise emit a select per
  // sum.
  __device__ void clear() {
#pragma unroll
    for (float& sum : at) asm volatile("mov.f32 %0, 0f00000000;" : "=f"(sum));
  }
};

// wgmma fence, before the first wgmma that reads registers or shared memory written before.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

#define BEV_SUMS_8(i)                                                                 \
  "+f"(sums.at[i]), "+f"(sums.at[i + 1]), "+f"(sums.at[i + 2]), "+f"(sums.at[i + 3]), \
      "+f"(sums.at[i + 4]), "+f"(sums.at[i + 5]), "+f"(sums.at[i + 6]), "+f"(sums.at[i + 7])
#define BEV_WGMMA(type)                                                                            \
  asm volatile(                                                                                    \
      "{\n.reg .pred adds;\nsetp.ne.b32 adds, %130, 0;\n"                                          \
      "wgmma.mma_async.sync.aligned.m64n256k16.f32." type "." type                                 \
      " "                                                                                          \
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                    \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "           \
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "           \
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "           \
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "           \
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "           \
      "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, "     \
      "%111, "                                                                                     \
      "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, " \
      "%127}, "                                                                                    \
      "%128, %129, adds, 1, 1, %131, %132;\n}"                                                     \
      : BEV_SUMS_8(0), BEV_SUMS_8(8), BEV_SUMS_8(16), BEV_SUMS_8(24), BEV_SUMS_8(32),              \
        BEV_SUMS_8(40), BEV_SUMS_8(48), BEV_SUMS_8(56), BEV_SUMS_8(64), BEV_SUMS_8(72),            \
        BEV_SUMS_8(80), BEV_SUMS_8(88), BEV_SUMS_8(96), BEV_SUMS_8(104), BEV_SUMS_8(112),          \
        BEV_SUMS_8(120)                                                                            \
      : "l"(left), "l"(right), "r"(static_cast<int>(adds)), "n"(kLeftInnerRows ? 1 : 0),           \
        "n"(kRightInnerRows ? 1 : 0))

// Issues wgmma m64n256k16: sums = left right, accumulating if `adds`.
template <class T, bool kLeftInnerRows, bool kRightInnerRows>
__device__ void start_wgmma(WideSums& sums, std::uint64_t left, std::uint64_t right, bool adds) {
  if constexpr (std::is_same_v<T, Bf16>) {
    BEV_WGMMA("bf16");
  } else {
    BEV_WGMMA("f16");
  }
}

#undef BEV_WGMMA

// Accumulator [64, 128], laid out like WideSums.
struct HalfSums {
  float at[64];

  __device__ void settle() {
#pragma unroll
    for (float& sum : at) asm volatile("" : "+f"(sum)::"memory");
  }
};

#define BEV_WGMMA(type)                                                                   \
  asm volatile(                                                                           \
      "{\n.reg .pred adds;\nsetp.ne.b32 adds, %66, 0;\n"                                  \
      "wgmma.mma_async.sync.aligned.m64n128k32.f32." type                                 \
      ".e4m3 "                                                                            \
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "           \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "  \
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "  \
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, " \
      "%64, %65, adds, 1, 1;\n}"                                                          \
      : BEV_SUMS_8(0), BEV_SUMS_8(8), BEV_SUMS_8(16), BEV_SUMS_8(24), BEV_SUMS_8(32),     \
        BEV_SUMS_8(40), BEV_SUMS_8(48), BEV_SUMS_8(56)                                    \
      : "l"(left), "l"(right), "r"(static_cast<int>(adds)))

// Issues FP8 wgmma m64n128k32; both operands are K-major.
template <Fp8Format kLeft>
__device__ void start_wgmma(HalfSums& sums, std::uint64_t left, std::uint64_t right, bool adds) {
  if constexpr (kLeft == Fp8Format::kE4m3) {
    BEV_WGMMA("e4m3");
  } else {
    BEV_WGMMA("e5m2");
  }
}

#undef BEV_WGMMA
#undef BEV_SUMS_8

// stmatrix: stores four 8 x 8 matrices of 16-bit elements; lane l gives the address of row l % 8 of
// matrix l / 8.
__device__ inline void store_matrices(std::uint32_t row_address, const std::uint32_t (&x)[4]) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row_address),
      "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
      : "memory");
}

}  // namespace bev::cuda::hopper
