// Device functions of CUDA and the PTX instructions of our kernels, for translated kernels.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "tests/cuda_emulation/emulated_block.h"

// Indices of the thread that runs.
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
inline constexpr int warpSize = 32;

namespace bev::cuda_emulation {

// Values of a lane: its own, and what it gets from lane `source`.
struct Exchange {
  std::uint64_t own, got;
  int source;
};
void exchange(unsigned mask, Exchange& values);
template <class T>
T exchange_value(unsigned mask, T value, int source) {
  static_assert(sizeof(T) <= 8);
  Exchange values{0, 0, source};
  std::memcpy(&values.own, &value, sizeof(T));
  exchange(mask, values);
  std::memcpy(&value, &values.got, sizeof(T));
  return value;
}

struct Vote {
  std::uint64_t value;
  unsigned result;
};
unsigned ballot(unsigned mask, bool predicate);
unsigned match_any(unsigned mask, std::uint64_t value);
std::uint32_t reduce_max(unsigned mask, std::uint32_t value);
std::uint32_t reduce_min(unsigned mask, std::uint32_t value);
std::uint32_t reduce_add(unsigned mask, std::uint32_t value);

namespace ptx {

inline void cp_async_cg_shared_global(std::uint32_t to, const void* from, int bytes, int valid) {
  copy_async(to, from, bytes, valid);
}
inline void cp_async_cg_shared_global(std::uint32_t to, const void* from, int bytes) {
  copy_async(to, from, bytes, bytes);
}
inline void cp_async_ca_shared_global(std::uint32_t to, const void* from, int bytes, int valid) {
  copy_async(to, from, bytes, valid);
}
inline void cp_async_commit_group() { commit_copies(); }
inline void cp_async_wait_group(int pending) { wait_for_copies(pending); }
inline void cp_async_wait_all() {
  commit_copies();
  wait_for_copies(0);
}
inline void barrier_cluster_arrive_release_aligned() {}
inline void barrier_cluster_wait_acquire_aligned() { cluster_barrier(); }
inline void mapa_shared_cluster_u32(std::uint32_t& there, std::uint32_t here, int rank) {
  there = shared_address_in(here, rank);
}
inline void ld_shared_cluster_v4_f32(float& x, float& y, float& z, float& w, std::uint32_t from) {
  if (from % 16 != 0) fault("ld.shared::cluster.v4 at an address that is not aligned");
  const float* at = static_cast<const float*>(shared_pointer(from, 16));
  x = at[0], y = at[1], z = at[2], w = at[3];
}
void ldmatrix_sync_aligned_m8n8_x4_shared_b16(std::uint32_t& a, std::uint32_t& b, std::uint32_t& c,
                                              std::uint32_t& d, std::uint32_t row);
void ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16(std::uint32_t& a, std::uint32_t& b,
                                                    std::uint32_t& c, std::uint32_t& d,
                                                    std::uint32_t row);
void mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32(float& d0, float& d1, float& d2, float& d3,
                                                         std::uint32_t a0, std::uint32_t a1,
                                                         std::uint32_t a2, std::uint32_t a3,
                                                         std::uint32_t b0, std::uint32_t b1,
                                                         float c0, float c1, float c2, float c3);
void mma_sync_aligned_m16n8k16_row_col_f32_f16_f16_f32(float& d0, float& d1, float& d2, float& d3,
                                                       std::uint32_t a0, std::uint32_t a1,
                                                       std::uint32_t a2, std::uint32_t a3,
                                                       std::uint32_t b0, std::uint32_t b1, float c0,
                                                       float c1, float c2, float c3);
void cvt_rn_bf16x2_f32(std::uint32_t& word, float high, float low);
void cvt_rn_f16x2_f32(std::uint32_t& word, float high, float low);
void cvt_f32_f16(float& wide, std::uint16_t bits);
inline void ex2_approx_ftz_f32(float& y, float x) {
  y = std::fabs(x) < 0x1p-126f ? 1.0f : std::exp2(x);
  if (std::fabs(y) < 0x1p-126f) y = 0;
}
inline void sqrt_approx_f32(float& y, float x) { y = std::sqrt(x); }
inline void prefetch_global_L2(const void*) {}
inline void bar_sync(int index, int threads) { named_barrier(index, threads); }
inline void griddepcontrol_launch_dependents() {}
inline void griddepcontrol_wait() {}
inline void unknown() { fault("PTX that is not emulated"); }

}  // namespace ptx
}  // namespace bev::cuda_emulation

inline void __syncthreads() { bev::cuda_emulation::block_barrier(false); }
inline int __syncthreads_or(int x) { return bev::cuda_emulation::block_barrier(x != 0) > 0; }
inline int __syncthreads_count(int x) { return bev::cuda_emulation::block_barrier(x != 0); }
inline void __syncwarp(unsigned mask = ~0u) {
  bev::cuda_emulation::warp_collective(
      mask, [](void* const(&)[32]) {}, nullptr);
}
template <class T>
T __shfl_sync(unsigned mask, T value, int lane, int width = 32) {
  const int own = bev::cuda_emulation::lane_index();
  return bev::cuda_emulation::exchange_value(mask, value, own / width * width + lane % width);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int distance) {
  return bev::cuda_emulation::exchange_value(mask, value,
                                             bev::cuda_emulation::lane_index() ^ distance);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, int distance) {
  const int own = bev::cuda_emulation::lane_index();
  return bev::cuda_emulation::exchange_value(mask, value, own >= distance ? own - distance : own);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, int distance) {
  const int own = bev::cuda_emulation::lane_index();
  return bev::cuda_emulation::exchange_value(mask, value,
                                             own + distance < 32 ? own + distance : own);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  return bev::cuda_emulation::ballot(mask, predicate != 0);
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, !predicate) == 0; }
template <class T>
unsigned __match_any_sync(unsigned mask, T value) {
  return bev::cuda_emulation::match_any(mask, static_cast<std::uint64_t>(value));
}
inline unsigned __reduce_max_sync(unsigned mask, unsigned x) {
  return bev::cuda_emulation::reduce_max(mask, x);
}
inline unsigned __reduce_min_sync(unsigned mask, unsigned x) {
  return bev::cuda_emulation::reduce_min(mask, x);
}
inline unsigned __reduce_add_sync(unsigned mask, unsigned x) {
  return bev::cuda_emulation::reduce_add(mask, x);
}

template <class T, class U>
T atomicAdd(T* at, U value) {
  const T before = *at;
  *at = static_cast<T>(before + static_cast<T>(value));
  return before;
}
template <class T, class U>
T atomicMax(T* at, U value) {
  const T before = *at;
  *at = std::max(before, static_cast<T>(value));
  return before;
}
template <class T, class U>
T atomicMin(T* at, U value) {
  const T before = *at;
  *at = std::min(before, static_cast<T>(value));
  return before;
}
template <class T, class U>
T atomicOr(T* at, U value) {
  const T before = *at;
  *at |= static_cast<T>(value);
  return before;
}
template <class T, class U>
T atomicExch(T* at, U value) {
  const T before = *at;
  *at = static_cast<T>(value);
  return before;
}
template <class T, class U, class V>
T atomicCAS(T* at, U compare, V value) {
  const T before = *at;
  if (before == static_cast<T>(compare)) *at = static_cast<T>(value);
  return before;
}
inline void __threadfence() {}
inline void __threadfence_system() {}

template <class T>
T __ldg(const T* from) {
  return *from;
}
template <class T>
T __ldcs(const T* from) {
  return *from;
}
template <class T>
void __stcs(T* to, T value) {
  *to = value;
}
inline std::size_t __cvta_generic_to_shared(const void* pointer) {
  return bev::cuda_emulation::shared_address(pointer);
}

inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline double __dsqrt_rn(double a) { return std::sqrt(a); }
// 0 for large divisors, as on the device.
inline float __fdividef(float a, float b) {
  return std::isfinite(b) && std::fabs(b) > 0x1p126f ? 0.0f : a / b;
}
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
inline double rsqrt(double x) { return 1 / std::sqrt(x); }
inline unsigned long long __double2ull_rn(double x) {
  return x <= 0 ? 0 : static_cast<unsigned long long>(std::nearbyint(x));
}
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __clzll(long long x) { return std::countl_zero(static_cast<unsigned long long>(x)); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const std::uint64_t bytes = std::uint64_t{y} << 32 | x;
  unsigned out = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned choice = selector >> (4 * i) & 0xf;
    unsigned byte = static_cast<unsigned>(bytes >> (8 * (choice & 7))) & 0xff;
    if (choice & 8) byte = byte & 0x80 ? 0xff : 0;
    out |= byte << (8 * i);
  }
  return out;
}

#ifdef BEV_EMULATED_KERNELS
inline int min(int a, int b) { return b < a ? b : a; }
inline int max(int a, int b) { return a < b ? b : a; }
inline unsigned min(unsigned a, unsigned b) { return b < a ? b : a; }
inline unsigned max(unsigned a, unsigned b) { return a < b ? b : a; }
inline long min(long a, long b) { return b < a ? b : a; }
inline long max(long a, long b) { return a < b ? b : a; }
inline unsigned long min(unsigned long a, unsigned long b) { return b < a ? b : a; }
inline unsigned long max(unsigned long a, unsigned long b) { return a < b ? b : a; }
inline long long min(long long a, long long b) { return b < a ? b : a; }
inline long long max(long long a, long long b) { return a < b ? b : a; }
inline float min(float a, float b) { return std::fmin(a, b); }
inline float max(float a, float b) { return std::fmax(a, b); }
inline double min(double a, double b) { return std::fmin(a, b); }
inline double max(double a, double b) { return std::fmax(a, b); }
using std::isfinite;
using std::isinf;
using std::isnan;
#endif
