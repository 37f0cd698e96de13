// Grouped products of 16-bit numbers at Hopper's speed. As many blocks as there are multiprocessors
// go through the tiles [128, 256] of all experts' results. In a block one warp copies steps of 64
// of the inner dim to shared memory, kStages of them ahead; two warpgroups multiply and store, 64
// rows each. Where an expert's rows end is read on the device.
#pragma once

#include <type_traits>

#include "backend/cuda/grid.cuh"
#include "backend/cuda/grouped_hopper.cuh"
#include "backend/cuda/grouped_maps.h"
#include "backend/cuda/grouped_tiles.cuh"
#include "backend/cuda/moe_parts.h"

namespace bev::cuda {

// What a product makes: out [., C]. For kWeight the matrices [rows, C] of all experts on top of
// each other, whose inner dim are an expert's rows; else [rows, C] of all experts' rows.
template <class T, class Out>
struct GroupedWork {
  Out* out;
  const T* bias;
  const std::int32_t* offsets;
  int experts, rows, columns, depth;
  float beta;
};

namespace wgmma {

constexpr int kTileRows = 128, kTileColumns = 256, kTileDepth = 64, kStages = 4;
constexpr int kGroupRows = 64, kWarpRows = 16;
constexpr int kCopyThreads = 128, kProductThreads = 256;
constexpr int kBoxBytes = kTileDepth * kBoxColumns * 2;
constexpr int kLeftBytes = kTileRows * kTileDepth * 2;
constexpr int kStageBytes = kLeftBytes + kTileColumns * kTileDepth * 2;
// A warp's part of the results on their way out: 16 rows of 64 columns.
constexpr int kWayOutBytes = kWarpRows * 128;
constexpr int kSharedBytes =
    kStages * kStageBytes + kProductThreads / kWarp * kWayOutBytes + 1024;  // to align

struct Tile {
  int expert;        // `experts`: of nobody, zeros
  int begin, depth;  // of the inner dim: where an expert's rows begin, for kWeight; how many
  int row, column;   // within its expert for kWeight
  std::int64_t out_row, out_end;
};

// The tiles of this block in turn, by expert. Of an expert, bands of kBand tiles of rows go through
// the columns, so that blocks which run at the same time read the same rows and columns.
template <GroupedProduct kProduct>
class TileWalk {
 public:
  template <class Work>
  __device__ explicit TileWalk(const Work& work)
      : offsets_(work.offsets),
        experts_(work.experts),
        rows_(work.rows),
        depth_(work.depth),
        column_tiles_((work.columns + kTileColumns - 1) / kTileColumns),
        index_(static_cast<int>(blockIdx.x)),
        end_(offsets_[0]) {
    enter(0);
  }

  // False after the last.
  __device__ bool next(Tile& tile) {
    while (index_ >= row_tiles() * column_tiles_) {
      index_ -= row_tiles() * column_tiles_;
      if (expert_ + 1 > last()) return false;
      enter(expert_ + 1);
    }
    constexpr int kBand = 16;
    const int band = index_ / (kBand * column_tiles_), within = index_ % (kBand * column_tiles_);
    const int high = min(kBand, row_tiles() - band * kBand);
    const int row = (band * kBand + within % high) * kTileRows;
    tile.expert = expert_;
    tile.column = within / high * kTileColumns;
    if constexpr (kProduct == GroupedProduct::kWeight) {
      tile.row = row;
      tile.begin = begin_;
      tile.depth = end_ - begin_;
      tile.out_row = static_cast<std::int64_t>(expert_) * rows_ + row;
      tile.out_end = static_cast<std::int64_t>(expert_ + 1) * rows_;
    } else {
      tile.row = begin_ + row;
      tile.begin = 0;
      tile.depth = expert_ < experts_ ? depth_ : 0;
      tile.out_row = begin_ + row;
      tile.out_end = end_;
    }
    index_ += static_cast<int>(gridDim.x);
    return true;
  }

 private:
  // Rows of nobody come after the last expert's.
  __device__ int last() const {
    return kProduct == GroupedProduct::kWeight ? experts_ - 1 : experts_;
  }
  __device__ void enter(int expert) {
    expert_ = expert;
    begin_ = end_;
    end_ = expert < experts_ ? offsets_[expert + 1] : rows_;
  }
  __device__ int row_tiles() const {
    const int rows = kProduct == GroupedProduct::kWeight ? rows_ : end_ - begin_;
    return (rows + kTileRows - 1) / kTileRows;
  }

  const std::int32_t* offsets_;
  int experts_, rows_, depth_, column_tiles_;
  int index_;  // of the next tile, counted from the expert's first
  int end_, begin_ = 0, expert_ = 0;
};

// The place in the ring of stages.
struct RingPlace {
  int stage = 0, phase = 0;
  __device__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

struct Barriers {
  std::uint64_t full[kStages], empty[kStages];
};

template <GroupedProduct kProduct>
__device__ void copy_step(std::uint8_t* to, std::uint64_t& barrier, const CUtensorMap& left,
                          const CUtensorMap& right, const Tile& tile, int inner) {
  using hopper::copy_box;
  std::uint8_t* right_to = to + kLeftBytes;
  if constexpr (kProduct == GroupedProduct::kWeight) {
    const int row = kRagged - tile.depth + inner, end = tile.begin + tile.depth;
    for (int i = 0; i < kTileRows / kBoxColumns; ++i) {
      copy_box(to + i * kBoxBytes, left, barrier, tile.row + i * kBoxColumns, row, end, kRagged);
    }
    for (int i = 0; i < kTileColumns / kBoxColumns; ++i) {
      copy_box(right_to + i * kBoxBytes, right, barrier, tile.column + i * kBoxColumns, row, end,
               kRagged);
    }
  } else {
    copy_box(to, left, barrier, inner, tile.row);
    if constexpr (kProduct == GroupedProduct::kOutput) {
      copy_box(right_to, right, barrier, inner, tile.column, tile.expert);
    } else {
      for (int i = 0; i < kTileColumns / kBoxColumns; ++i) {
        copy_box(right_to + i * kBoxBytes, right, barrier, tile.column + i * kBoxColumns, inner,
                 tile.expert);
      }
    }
  }
}

template <GroupedProduct kProduct, class Work>
__device__ void copy_tiles(std::uint8_t* stages, Barriers& barriers, const CUtensorMap& left,
                           const CUtensorMap& right, const Work& work) {
  RingPlace place;
  TileWalk<kProduct> walk(work);
  Tile tile;
  while (walk.next(tile)) {
    for (int inner = 0; inner < tile.depth; inner += kTileDepth) {
      hopper::wait(barriers.empty[place.stage], place.phase ^ 1);
      std::uint64_t& full = barriers.full[place.stage];
      hopper::arrive_for_bytes(full, kStageBytes);
      copy_step<kProduct>(stages + place.stage * kStageBytes, full, left, right, tile, inner);
      place.advance();
    }
  }
}

// The sums of the warpgroup's rows over the tile's inner dim. Stages are handed back one step late,
// when the products that read them have ended.
template <class T, GroupedProduct kProduct>
__device__ void multiply_tile(hopper::WideSums& sums, std::uint8_t* stages, Barriers& barriers,
                              RingPlace& place, const Tile& tile, int group) {
  constexpr bool kLeftInnerRows = kProduct == GroupedProduct::kWeight;
  constexpr bool kRightInnerRows = kProduct != GroupedProduct::kOutput;
  const bool works = tile.out_row + group * kGroupRows < tile.out_end;
  const bool speaks = threadIdx.x % kWarp == 0;
  int before = -1;
  for (int inner = 0; inner < tile.depth; inner += kTileDepth) {
    hopper::wait(barriers.full[place.stage], place.phase);
    if (works) {
      const std::uint32_t at = hopper::shared_address(stages + place.stage * kStageBytes);
      const std::uint64_t left = hopper::operand(at + group * kBoxBytes, kBoxBytes);
      const std::uint64_t right = hopper::operand(at + kLeftBytes, kBoxBytes);
      hopper::begin_products();
#pragma unroll
      for (int i = 0; i < kTileDepth / 16; ++i) {
        hopper::start_product<T, kLeftInnerRows, kRightInnerRows>(
            sums, left + i * hopper::kSliceBytes<kLeftInnerRows> / 16,
            right + i * hopper::kSliceBytes<kRightInnerRows> / 16, inner + i > 0);
      }
      hopper::commit_products();
      hopper::wait_products<1>();
    }
    if (speaks && before >= 0) hopper::arrive(barriers.empty[before]);
    before = place.stage;
    place.advance();
  }
  hopper::wait_products<0>();
  sums.settle();
  if (speaks && before >= 0) hopper::arrive(barriers.empty[before]);
  if (tile.depth == 0) {
#pragma unroll
    for (float& sum : sums.at) sum = 0;
  }
}

// The warp's rows of the tile's results.
template <class Out>
struct WarpRows {
  Out* out;     // at its first row and column
  int rows;     // so many of its 16 rows are there, and none if negative
  int columns;  // so many of the tile's columns, or more
  std::int64_t stride;
};

// body(sums' index, row, column) for the lane's pairs of neighbouring columns that are there.
template <class Out, class Body>
__device__ void for_pairs(const WarpRows<Out>& to, const Body& body) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
#pragma unroll
  for (int block = 0; block < kTileColumns / 8; ++block) {
    if (8 * block >= to.columns) break;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = lane / 4 + 8 * half;
      if (row < to.rows) body(4 * block + 2 * half, row, 8 * block + 2 * (lane % 4));
    }
  }
}

// Through shared memory, so that a row's neighbours leave in whole lines.
template <class T>
__device__ void store_rows(const hopper::WideSums& sums, const WarpRows<T>& to,
                           std::uint8_t* way_out) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  auto word_at = [&](int row, int word) { return way_out + row * 128 + (word ^ row % 8) * 16; };
#pragma unroll
  for (int first = 0; first < kTileColumns; first += 64) {
    if (first >= to.columns) break;
    __syncwarp();
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      std::uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = first / 2 + 8 * pair + 2 * i;
        words[i] = cuda_attention::pack<T>(sums.at[at], sums.at[at + 1]);
      }
      hopper::store_matrices(hopper::shared_address(word_at(lane % 16, 2 * pair + lane / 16)),
                             words);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kWarpRows / 4; ++i) {
      const int row = 4 * i + lane / 8, column = first + lane % 8 * 8;
      if (row < to.rows && column < to.columns) {
        *reinterpret_cast<uint4*>(to.out + row * to.stride + column) =
            *reinterpret_cast<const uint4*>(word_at(row, lane % 8));
      }
    }
  }
}
__device__ inline void store_rows(const hopper::WideSums& sums, const WarpRows<float>& to,
                                  std::uint8_t*) {
  for_pairs(to, [&](int at, int row, int column) {
    *reinterpret_cast<float2*>(to.out + row * to.stride + column) = {sums.at[at], sums.at[at + 1]};
  });
}

template <class T, GroupedProduct kProduct, class Out>
__device__ void finish_tile(hopper::WideSums& sums, const GroupedWork<T, Out>& work,
                            const Tile& tile, int warp, std::uint8_t* way_out) {
  const std::int64_t first = tile.out_row + warp * kWarpRows;
  const WarpRows<Out> to{work.out + first * work.columns + tile.column,
                         static_cast<int>(min(tile.out_end - first, std::int64_t{kWarpRows})),
                         work.columns - tile.column, work.columns};
  if (to.rows <= 0) return;
  if constexpr (kProduct == GroupedProduct::kOutput) {
    if (work.bias != nullptr && tile.expert < work.experts) {
      const T* bias =
          work.bias + static_cast<std::int64_t>(tile.expert) * work.columns + tile.column;
      for_pairs(to, [&](int at, int, int column) {
        sums.at[at] += cuda_attention::widen(bias[column]);
        sums.at[at + 1] += cuda_attention::widen(bias[column + 1]);
      });
    }
  }
  if constexpr (kProduct == GroupedProduct::kWeight) {
    if (work.beta != 0) {
      for_pairs(to, [&](int at, int row, int column) {
        const Out* old = to.out + row * to.stride + column;
        sums.at[at] += work.beta * cuda_attention::widen(old[0]);
        sums.at[at + 1] += work.beta * cuda_attention::widen(old[1]);
      });
    }
  }
  store_rows(sums, to, way_out);
}

// Code for other architectures is empty, which can be told by its shared memory: none.
template <class T, GroupedProduct kProduct, class Out>
__global__ void __launch_bounds__(kCopyThreads + kProductThreads, 1)
    grouped_kernel(const __grid_constant__ CUtensorMap left,
                   const __grid_constant__ CUtensorMap right, const GroupedWork<T, Out> work) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ std::uint8_t memory[];
  __shared__ Barriers barriers;
  std::uint8_t* stages = memory + (1024 - hopper::shared_address(memory) % 1024) % 1024;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      hopper::make_barrier(barriers.full[i], 1);
      hopper::make_barrier(barriers.empty[i], kProductThreads / kWarp);
    }
    hopper::publish_barriers();
  }
  __syncthreads();
  if (threadIdx.x < kCopyThreads) {
    hopper::give_registers_up<40>();
    if (threadIdx.x == 0) copy_tiles<kProduct>(stages, barriers, left, right, work);
  } else {
    hopper::take_registers<232>();
    const int warp = static_cast<int>(threadIdx.x - kCopyThreads) / kWarp;
    std::uint8_t* way_out = stages + kStages * kStageBytes + warp * kWayOutBytes;
    hopper::WideSums sums;
    RingPlace place;
    TileWalk<kProduct> walk(work);
    Tile tile;
    while (walk.next(tile)) {
      multiply_tile<T, kProduct>(sums, stages, barriers, place, tile,
                                 warp / (kGroupRows / kWarpRows));
      finish_tile<T, kProduct>(sums, work, tile, warp, way_out);
    }
  }
#endif
}

}  // namespace wgmma

template <class T, GroupedProduct kProduct, class Out>
void run_wgmma(const Stream& stream, const GroupedArgs& args) {
  constexpr bool kWeight = kProduct == GroupedProduct::kWeight;
  constexpr bool kOutput = kProduct == GroupedProduct::kOutput;
  const View& in = kOutput ? args.x : args.y;
  const View& out = kWeight ? args.w : kOutput ? args.y : args.x;
  const GroupedWork<T, Out> work{address<Out>(out),
                                 kOutput ? address<T>(args.bias) : nullptr,
                                 args.offsets,
                                 static_cast<int>(args.w.shape[0]),
                                 static_cast<int>(kWeight ? args.w.shape[1] : in.shape[0]),
                                 static_cast<int>(out.shape[out.shape.ndim() - 1]),
                                 static_cast<int>(in.shape[1]),
                                 static_cast<float>(args.beta)};
  using wgmma::kTileColumns, wgmma::kTileDepth, wgmma::kTileRows;
  const CUtensorMap left = kWeight ? ragged_map(in, kTileDepth) : tensor_map(in, kTileRows);
  const CUtensorMap right = kWeight ? ragged_map(args.x, kTileDepth)
                                    : tensor_map(args.w, kOutput ? kTileColumns : kTileDepth);
  auto* kernel = &wgmma::grouped_kernel<T, kProduct, Out>;
  check_cuda(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, wgmma::kSharedBytes),
             "grouped product: shared memory");
  CudaQueue& queue = queue_of(stream);
  kernel<<<static_cast<unsigned>(queue.multiprocessors()),
           wgmma::kCopyThreads + wgmma::kProductThreads, wgmma::kSharedBytes, queue.stream()>>>(
      left, right, work);
  check_launch("grouped product");
}

template <class T>
void run_wgmma(const Stream& stream, const GroupedArgs& args, GroupedProduct product) {
  switch (product) {
    case GroupedProduct::kOutput:
      return run_wgmma<T, GroupedProduct::kOutput, T>(stream, args);
    case GroupedProduct::kInput:
      return run_wgmma<T, GroupedProduct::kInput, T>(stream, args);
    case GroupedProduct::kWeight:
      if (args.w.dtype == Dtype::kF32) {
        return run_wgmma<T, GroupedProduct::kWeight, float>(stream, args);
      }
      return run_wgmma<T, GroupedProduct::kWeight, T>(stream, args);
  }
}

}  // namespace bev::cuda
