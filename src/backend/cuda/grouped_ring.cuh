// How a block makes the tiles [128, 256] of grouped products on Hopper, whatever their numbers are.
// As many blocks as there are multiprocessors take the tiles of all experts' results, one after the
// other as they get free. In a block one thread copies steps of the inner dim to shared memory,
// kStages of them ahead; two warpgroups multiply, 64 rows each, and leave their results to copies
// again. Where an expert's rows end is read on the device.
#pragma once

#include <type_traits>

#include "backend/cuda/grid.cuh"
#include "backend/cuda/grouped_hopper.cuh"
#include "backend/cuda/grouped_maps.h"
#include "backend/cuda/grouped_walk.cuh"
#include "backend/cuda/moe_parts.h"
#include "backend/cuda/reduce.cuh"
#include "backend/cuda/values.cuh"

namespace bev::cuda::wgmma {

constexpr int kStages = 4, kGroupRows = 64, kWarpRows = 16;
constexpr int kCopyThreads = 128, kProductThreads = 256, kProductWarps = kProductThreads / kWarp;
// A step of the inner dim is a box's row of bytes.
constexpr int kLeftBytes = kTileRows * kBoxRowBytes;
constexpr int kStageBytes = kLeftBytes + kTileColumns * kBoxRowBytes;
// Of each warp so many boxes of results may be on their way out.
constexpr int kOutBoxes = 2, kOutBoxBytes = kWarpRows * kBoxRowBytes;
constexpr int kOutBytes = kOutBoxes * kOutBoxBytes;
constexpr int kSharedBytes =
    kStages * kStageBytes + kProductWarps * kOutBytes + 1024;  // the last to align

// What a product makes: out [., C], all experts' matrices or rows on top of each other.
template <class T, class Out>
struct Work {
  Walk walk;
  const Out* out;  // as it was, for beta
  const T* bias;   // null: none
  int columns;     // C
  float beta;
  int* tickets;  // how many tiles have been taken beyond each block's first
};

struct Maps {
  CUtensorMap left, right, out;
};

// A place in a ring of kSize.
template <int kSize>
struct RingPlace {
  int at = 0, phase = 0;
  __device__ void advance() {
    if (++at == kSize) {
      at = 0;
      phase ^= 1;
    }
  }
};

constexpr int kTilesAhead = 2, kNoTile = -1;
struct Shared {
  std::uint64_t full[kStages], empty[kStages];
  std::uint64_t tile_full[kTilesAhead], tile_empty[kTilesAhead];
  WalkTile tiles[kTilesAhead];  // whose expert is kNoTile after the last
};

__device__ inline void make_barriers(Shared& shared) {
  for (int i = 0; i < kStages; ++i) {
    hopper::make_barrier(shared.full[i], 1);
    hopper::make_barrier(shared.empty[i], kProductWarps);
  }
  for (int i = 0; i < kTilesAhead; ++i) {
    hopper::make_barrier(shared.tile_full[i], 1);
    hopper::make_barrier(shared.tile_empty[i], kProductWarps);
  }
  hopper::publish_barriers();
}

// One thread: takes tiles, tells the warps that multiply where they are, and copies steps of kDepth
// to the first kUsed stages by copy_step(stage, tile, inner), which says how many bytes come.
template <GroupedProduct kProduct, int kDepth, int kUsed, class CopyStep>
__device__ void copy_tiles(Shared& shared, const Walk& walk, int* tickets,
                           const CopyStep& copy_step) {
  RingPlace<kUsed> stage;
  RingPlace<kTilesAhead> told;
  Walker<kProduct> walker(walk);
  WalkTile tile;
  int ticket = static_cast<int>(blockIdx.x);
  while (true) {
    if (!walker.find(ticket, tile)) tile.expert = kNoTile;
    hopper::wait(shared.tile_empty[told.at], told.phase ^ 1);
    shared.tiles[told.at] = tile;
    hopper::arrive(shared.tile_full[told.at]);
    told.advance();
    if (tile.expert == kNoTile) return;
    // Asked for early, since the answer takes a while.
    ticket = static_cast<int>(gridDim.x) + atomicAdd(tickets, 1);
    for (int inner = 0; inner < tile.depth; inner += kDepth) {
      hopper::wait(shared.empty[stage.at], stage.phase ^ 1);
      copy_step(stage.at, tile, inner);
      stage.advance();
    }
  }
}

// False after the last.
__device__ inline bool next_tile(Shared& shared, RingPlace<kTilesAhead>& told, WalkTile& tile) {
  hopper::wait(shared.tile_full[told.at], told.phase);
  tile = shared.tiles[told.at];
  __syncwarp();
  if (threadIdx.x % kWarp == 0) hopper::arrive(shared.tile_empty[told.at]);
  told.advance();
  return tile.expert != kNoTile;
}

// body(index of a sum, row, column) for the lane's pairs of neighbouring columns, of the warp's
// first `rows` rows and the tile's first `columns` columns.
template <class Body>
__device__ void for_pairs(int rows, int columns, const Body& body) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
#pragma unroll
  for (int block = 0; block < kTileColumns / 8; ++block) {
    if (8 * block >= columns) break;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = lane / 4 + 8 * half;
      if (row < rows) body(4 * block + 2 * half, row, 8 * block + 2 * (lane % 4));
    }
  }
}

// Adds the bias, or what was there before, to the sums of the warp's rows from `row` on.
template <GroupedProduct kProduct, class T, class Out>
__device__ void add_terms(hopper::WideSums& sums, const Work<T, Out>& work, const WalkTile& tile,
                          int row) {
  const int columns = work.columns - tile.column, rows = tile.row_end - row;
  if constexpr (kProduct == GroupedProduct::kOutput) {
    if (work.bias == nullptr || tile.expert == work.walk.experts) return;
    const T* bias = work.bias + static_cast<std::int64_t>(tile.expert) * work.columns + tile.column;
    for_pairs(rows, columns, [&](int at, int, int column) {
      sums.at[at] += cuda_attention::widen(bias[column]);
      sums.at[at + 1] += cuda_attention::widen(bias[column + 1]);
    });
  }
  if constexpr (kProduct == GroupedProduct::kWeight) {
    if (work.beta == 0) return;
    const std::int64_t first = static_cast<std::int64_t>(tile.expert) * work.walk.rows + row;
    const Out* old = work.out + first * work.columns + tile.column;
    for_pairs(rows, columns, [&](int at, int r, int column) {
      const Out* pair = old + static_cast<std::int64_t>(r) * work.columns + column;
      sums.at[at] += work.beta * cuda_attention::widen(pair[0]);
      sums.at[at + 1] += work.beta * cuda_attention::widen(pair[1]);
    });
  }
}

// The warp's sums from kFirst on, as many as make a box, to shared memory as the copies want them.
template <class Out, int kFirst>
__device__ void fill_box(std::uint8_t* box, const hopper::WideSums& sums) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  auto word_at = [&](int row, int word) {
    return box + row * kBoxRowBytes + (word ^ row % 8) * 16;
  };
  if constexpr (std::is_same_v<Out, float>) {
#pragma unroll
    for (int i = 0; i < 16; i += 2) {
      const int row = lane / 4 + i / 2 % 2 * 8, word = i / 4 * 2 + lane % 4 / 2;
      *reinterpret_cast<float2*>(word_at(row, word) + lane % 2 * 8) = {sums.at[kFirst + i],
                                                                       sums.at[kFirst + i + 1]};
    }
  } else {
#pragma unroll
    for (int i = 0; i < 32; i += 8) {
      std::uint32_t words[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int at = kFirst + i + 2 * k;
        words[k] = cuda_attention::pack<Out>(sums.at[at], sums.at[at + 1]);
      }
      hopper::store_matrices(hopper::shared_address(word_at(lane % 16, i / 4 + lane / 16)), words);
    }
  }
}

// Starts the copies of the warp's rows, from `row` on, to where they belong.
template <GroupedProduct kProduct, class Out, int kFirst = 0>
__device__ void store_rows(const hopper::WideSums& sums, const CUtensorMap& map,
                           const WalkTile& tile, int row, int columns, std::uint8_t* boxes,
                           int& slot) {
  constexpr int kColumns = kBoxRowBytes / static_cast<int>(sizeof(Out));
  constexpr int kColumn = kFirst * 2;  // a lane has a pair of sums in each 4 columns of 16 rows
  const int column = tile.column + kColumn;
  if (column >= columns) return;
  const bool speaks = threadIdx.x % kWarp == 0;
  std::uint8_t* box = boxes + slot * kOutBoxBytes;
  if (speaks) hopper::wait_boxes_read<kOutBoxes - 1>();
  __syncwarp();
  fill_box<Out, kFirst>(box, sums);
  hopper::publish_shared();
  __syncwarp();
  if (speaks) {
    if constexpr (kProduct == GroupedProduct::kWeight) {
      hopper::store_box(box, map, column, row, tile.expert);
    } else {
      hopper::store_box(box, map, column, kRagged - (tile.row_end - row), tile.row_end, kRagged);
    }
  }
  slot = slot + 1 == kOutBoxes ? 0 : slot + 1;
  if constexpr (kColumn + kColumns < kTileColumns) {
    store_rows<kProduct, Out, kFirst + kColumns / 2>(sums, map, tile, row, columns, boxes, slot);
  }
}

// The warps that multiply. multiply(sums, stage, tile, warp) makes the sums of the warp's group.
template <class T, GroupedProduct kProduct, int kUsed, class Out, class Multiply>
__device__ void multiply_tiles(std::uint8_t* memory, Shared& shared, const CUtensorMap& out,
                               const Work<T, Out>& work, const Multiply& multiply) {
  const int warp = static_cast<int>(threadIdx.x - kCopyThreads) / kWarp;
  std::uint8_t* boxes = memory + kStages * kStageBytes + warp * kOutBytes;
  int slot = 0;
  hopper::WideSums sums;
  RingPlace<kUsed> stage;
  RingPlace<kTilesAhead> told;
  WalkTile tile;
  while (next_tile(shared, told, tile)) {
    multiply(sums, stage, tile, warp);
    const int row = tile.row + warp * kWarpRows;
    if (row >= tile.row_end) continue;
    add_terms<kProduct>(sums, work, tile, row);
    store_rows<kProduct, Out>(sums, out, tile, row, work.columns, boxes, slot);
  }
  hopper::wait_boxes_read<0>();
}

// Launches one block for each multiprocessor. make_work(tickets) is what the kernel gets.
template <class Kernel, class MakeWork>
void launch_tiles(const Stream& stream, Kernel* kernel, const Maps& maps,
                  const MakeWork& make_work) {
  CudaQueue& queue = queue_of(stream);
  auto* tickets = static_cast<int*>(queue.scratch(sizeof(int)));
  check_cuda(cudaMemsetAsync(tickets, 0, sizeof(int), queue.stream()), "grouped product");
  check_cuda(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes),
             "grouped product: shared memory");
  kernel<<<static_cast<unsigned>(queue.multiprocessors()), kCopyThreads + kProductThreads,
           kSharedBytes, queue.stream()>>>(maps, make_work(tickets));
  check_launch("grouped product");
}

}  // namespace bev::cuda::wgmma
