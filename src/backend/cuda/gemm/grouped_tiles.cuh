// Shared by the grouped GEMM kernels with static grids: their arguments, and the mapping from a
// block to a tile of an expert's rows. Row counts are only known on the device, so the grid has a
// block for every tile that could exist.
#pragma once

#include <cstdint>

#include "backend/cuda/device/reduce.cuh"
#include "backend/cuda/device/values.cuh"
#include "base/divide.h"
#include "kernels/moe.h"

namespace bev::cuda {

// Forward: out = in w^T + bias; dgrad: out = in w.
template <class T>
struct RowGemm {
  const T *in, *w, *bias;
  T* out;
  const std::int32_t* offsets;
  int rows, depth, columns, experts;
};
template <class T>
RowGemm<T> row_gemm(const GroupedGemmArgs& args, bool of_input) {
  const View &in = of_input ? args.y : args.x, &out = of_input ? args.x : args.y;
  return {address<T>(in),
          address<T>(args.w),
          of_input ? nullptr : address<T>(args.bias),
          address<T>(out),
          args.offsets,
          static_cast<int>(in.shape[0]),
          static_cast<int>(in.shape[1]),
          static_cast<int>(out.shape[1]),
          static_cast<int>(args.w.shape[0])};
}

// wgrad: w = beta w + y^T x over the rows of each expert.
template <class T, class G>
struct WgradGemm {
  const T *x, *y;
  G* w;
  const std::int32_t* offsets;
  int rows_of_w, columns;
  float beta;
};
template <class T, class G>
WgradGemm<T, G> wgrad_gemm(const GroupedGemmArgs& args) {
  return {address<T>(args.x),
          address<T>(args.y),
          address<G>(args.w),
          args.offsets,
          static_cast<int>(args.w.shape[1]),
          static_cast<int>(args.w.shape[2]),
          static_cast<float>(args.beta)};
}

// Upper bound on the tiles of tile_rows rows for `rows` rows of `experts` experts, including those
// past the last offset.
constexpr std::int64_t most_tiles(std::int64_t rows, std::int64_t experts, int tile_rows) {
  return rows / tile_rows + experts + 1;
}

struct RowTile {
  int expert = -1;  // `experts` for rows past the last offset, -1 for no tile
  int begin = 0, end = 0;
};

// Tile number `index`, where every expert starts a new tile of kRows rows. Every warp of the block
// computes it on its own; all its lanes must call.
template <int kRows>
__device__ RowTile find_tile(const std::int32_t* offsets, int experts, int rows, int index) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  int before = 0;  // tiles of earlier experts
  for (int first = 0; first <= experts; first += kWarp) {
    const int e = first + lane;
    int begin = 0, end = 0;
    if (e <= experts) {
      begin = offsets[e];
      end = e < experts ? offsets[e + 1] : rows;
    }
    const int tiles = ceil_div(end - begin, kRows);
    int up_to = tiles;
    for (int distance = 1; distance < kWarp; distance *= 2) {
      const int other = __shfl_up_sync(0xffffffffu, up_to, distance);
      if (lane >= distance) up_to += other;
    }
    const int own = index - before - (up_to - tiles);
    const unsigned found = __ballot_sync(0xffffffffu, own >= 0 && own < tiles);
    if (found != 0) {
      const int from = __ffs(static_cast<int>(found)) - 1;
      RowTile tile;
      tile.expert = first + from;
      const int tile_begin = __shfl_sync(0xffffffffu, begin + own * kRows, from);
      const int expert_end = __shfl_sync(0xffffffffu, end, from);
      tile.begin = tile_begin;
      tile.end = tile_begin + kRows < expert_end ? tile_begin + kRows : expert_end;
      return tile;
    }
    before += __shfl_sync(0xffffffffu, up_to, kWarp - 1);
  }
  return {};
}

}  // namespace bev::cuda
