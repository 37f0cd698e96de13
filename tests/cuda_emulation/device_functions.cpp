// Warp collectives: shuffles, votes, ldmatrix and mma, with the fragment layouts of the PTX manual.
#include "tensor/dtype.h"
#include "tests/cuda_emulation/include/cuda_runtime.h"

namespace bev::cuda_emulation {

namespace {

constexpr int kWarp = 32;

template <class T>
T* payload_of(void* lane) {
  return static_cast<T*>(lane);
}

template <class Join>
unsigned vote(unsigned mask, std::uint64_t value, Join) {
  Vote own{value, 0};
  warp_collective(
      mask,
      [](void* const(&lanes)[kWarp]) {
        for (int i = 0; i < kWarp; ++i) {
          if (lanes[i] == nullptr) continue;
          Vote& to = *payload_of<Vote>(lanes[i]);
          bool first = true;
          for (int j = 0; j < kWarp; ++j) {
            if (lanes[j] == nullptr) continue;
            Join::join(to.result, to.value, payload_of<Vote>(lanes[j])->value, j, first);
            first = false;
          }
        }
      },
      &own);
  return own.result;
}

struct Ballot {
  static void join(unsigned& result, std::uint64_t, std::uint64_t other, int lane, bool) {
    if (other != 0) result |= 1u << lane;
  }
};
struct Match {
  static void join(unsigned& result, std::uint64_t own, std::uint64_t other, int lane, bool) {
    if (other == own) result |= 1u << lane;
  }
};
struct Largest {
  static void join(unsigned& result, std::uint64_t, std::uint64_t other, int, bool first) {
    if (first || other > result) result = static_cast<unsigned>(other);
  }
};
struct Smallest {
  static void join(unsigned& result, std::uint64_t, std::uint64_t other, int, bool first) {
    if (first || other < result) result = static_cast<unsigned>(other);
  }
};
struct Total {
  static void join(unsigned& result, std::uint64_t, std::uint64_t other, int, bool) {
    result += static_cast<unsigned>(other);
  }
};

}  // namespace

void exchange(unsigned mask, Exchange& values) {
  warp_collective(
      mask,
      [](void* const(&lanes)[kWarp]) {
        for (void* lane : lanes) {
          if (lane == nullptr) continue;
          auto& to = *payload_of<Exchange>(lane);
          void* from = lanes[to.source & (kWarp - 1)];
          // Undefined on the device: NaN in every type.
          to.got = from == nullptr ? ~std::uint64_t{0} : payload_of<Exchange>(from)->own;
        }
      },
      &values);
}

unsigned ballot(unsigned mask, bool predicate) { return vote(mask, predicate, Ballot{}); }
unsigned match_any(unsigned mask, std::uint64_t value) { return vote(mask, value, Match{}); }
std::uint32_t reduce_max(unsigned mask, std::uint32_t value) {
  return vote(mask, value, Largest{});
}
std::uint32_t reduce_min(unsigned mask, std::uint32_t value) {
  return vote(mask, value, Smallest{});
}
std::uint32_t reduce_add(unsigned mask, std::uint32_t value) { return vote(mask, value, Total{}); }

namespace ptx {

namespace {

// ldmatrix: lane l of a warp gives the address of row l % 8 of matrix l / 8.
struct Matrices {
  std::uint32_t row, words[4];
};

template <bool kTransposed>
void load_matrices(void* const (&lanes)[kWarp]) {
  const std::uint16_t* rows[kWarp];
  for (int i = 0; i < kWarp; ++i) {
    const std::uint32_t row = payload_of<Matrices>(lanes[i])->row;
    if (row % 16 != 0) fault("ldmatrix at an address that is not aligned");
    rows[i] = static_cast<const std::uint16_t*>(shared_pointer(row, 16));
  }
  for (int lane = 0; lane < kWarp; ++lane) {
    const int row = lane / 4, column = lane % 4 * 2;
    for (int i = 0; i < 4; ++i) {
      const std::uint16_t* const* matrix = rows + 8 * i;
      const std::uint32_t low = kTransposed ? matrix[column][row] : matrix[row][column];
      const std::uint32_t high = kTransposed ? matrix[column + 1][row] : matrix[row][column + 1];
      payload_of<Matrices>(lanes[lane])->words[i] = high << 16 | low;
    }
  }
}

template <bool kTransposed>
void ldmatrix(std::uint32_t& a, std::uint32_t& b, std::uint32_t& c, std::uint32_t& d,
              std::uint32_t row) {
  Matrices own{row, {}};
  aligned_collective(load_matrices<kTransposed>, &own);
  a = own.words[0], b = own.words[1], c = own.words[2], d = own.words[3];
}

struct Fragments {
  std::uint32_t a[4], b[2];
  float sums[4];
};

template <class T>
float half_of(std::uint32_t word, int half) {
  T value;
  value.bits = static_cast<std::uint16_t>(word >> (16 * half));
  return value;
}

// Products are added in order of K: kernels must not rely on another order.
template <class T>
void multiply_add(void* const (&lanes)[kWarp]) {
  float a[16][16], b[16][8], c[16][8];
  for (int lane = 0; lane < kWarp; ++lane) {
    const Fragments& from = *payload_of<Fragments>(lanes[lane]);
    const int row = lane / 4, column = lane % 4 * 2;
    for (int half = 0; half < 2; ++half) {
      a[row][column + half] = half_of<T>(from.a[0], half);
      a[row + 8][column + half] = half_of<T>(from.a[1], half);
      a[row][column + 8 + half] = half_of<T>(from.a[2], half);
      a[row + 8][column + 8 + half] = half_of<T>(from.a[3], half);
      b[column + half][row] = half_of<T>(from.b[0], half);
      b[column + 8 + half][row] = half_of<T>(from.b[1], half);
      c[row][column + half] = from.sums[half];
      c[row + 8][column + half] = from.sums[2 + half];
    }
  }
  for (int i = 0; i < 16; ++i) {
    for (int k = 0; k < 16; ++k) {
      for (int j = 0; j < 8; ++j) c[i][j] += a[i][k] * b[k][j];
    }
  }
  for (int lane = 0; lane < kWarp; ++lane) {
    Fragments& to = *payload_of<Fragments>(lanes[lane]);
    const int row = lane / 4, column = lane % 4 * 2;
    for (int half = 0; half < 2; ++half) {
      to.sums[half] = c[row][column + half];
      to.sums[2 + half] = c[row + 8][column + half];
    }
  }
}

template <class T>
std::uint32_t rounded(float x) {
  return std::isnan(x) ? 0x7fffu : std::uint32_t{T(x).bits};
}

}  // namespace

void ldmatrix_sync_aligned_m8n8_x4_shared_b16(std::uint32_t& a, std::uint32_t& b, std::uint32_t& c,
                                              std::uint32_t& d, std::uint32_t row) {
  ldmatrix<false>(a, b, c, d, row);
}
void ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16(std::uint32_t& a, std::uint32_t& b,
                                                    std::uint32_t& c, std::uint32_t& d,
                                                    std::uint32_t row) {
  ldmatrix<true>(a, b, c, d, row);
}

void mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32(float& d0, float& d1, float& d2, float& d3,
                                                         std::uint32_t a0, std::uint32_t a1,
                                                         std::uint32_t a2, std::uint32_t a3,
                                                         std::uint32_t b0, std::uint32_t b1,
                                                         float c0, float c1, float c2, float c3) {
  Fragments own{{a0, a1, a2, a3}, {b0, b1}, {c0, c1, c2, c3}};
  aligned_collective(multiply_add<Bf16>, &own);
  d0 = own.sums[0], d1 = own.sums[1], d2 = own.sums[2], d3 = own.sums[3];
}
void mma_sync_aligned_m16n8k16_row_col_f32_f16_f16_f32(float& d0, float& d1, float& d2, float& d3,
                                                       std::uint32_t a0, std::uint32_t a1,
                                                       std::uint32_t a2, std::uint32_t a3,
                                                       std::uint32_t b0, std::uint32_t b1, float c0,
                                                       float c1, float c2, float c3) {
  Fragments own{{a0, a1, a2, a3}, {b0, b1}, {c0, c1, c2, c3}};
  aligned_collective(multiply_add<F16>, &own);
  d0 = own.sums[0], d1 = own.sums[1], d2 = own.sums[2], d3 = own.sums[3];
}

void cvt_rn_bf16x2_f32(std::uint32_t& word, float high, float low) {
  word = rounded<Bf16>(high) << 16 | rounded<Bf16>(low);
}
void cvt_rn_f16x2_f32(std::uint32_t& word, float high, float low) {
  word = rounded<F16>(high) << 16 | rounded<F16>(low);
}
void cvt_f32_f16(float& wide, std::uint16_t bits) {
  F16 value;
  value.bits = bits;
  wide = value;
}

}  // namespace ptx
}  // namespace bev::cuda_emulation
