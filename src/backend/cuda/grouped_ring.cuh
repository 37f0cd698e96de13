// How a block makes the tiles [128, 256] of grouped products on Hopper, whatever their numbers are.
// As many blocks as there are multiprocessors, in pairs (clusters), take pairs of tiles of all
// experts' results, one after the other as they get free. In a block one thread copies steps of the
// inner dim to shared memory, kStages of them ahead; two warpgroups multiply, 64 rows each, and
// leave their results to copies again. Where an expert's rows end is read on the device.
//
//   block 0 copies  the left factor of tile 0 -> itself, columns 0 to 127 of the right -> both
//   block 1 copies  the left factor of tile 1 -> itself, columns 128 to 255 -> both
//
// So a stage is full when both have copied, and empty when the warps of both have read it. One
// thread of block 0 finds the tiles and writes them to both.
#pragma once

#include "backend/cuda/grid.cuh"
#include "backend/cuda/grouped_results.cuh"
#include "backend/cuda/optim_parts.h"
#include "backend/cuda/values.cuh"

namespace bev::cuda::wgmma {

constexpr int kStages = 4, kGroupRows = 64;
constexpr int kPair = 2;  // blocks of a cluster
constexpr int kCopyThreads = 128, kProductThreads = 256, kProductWarps = kProductThreads / kWarp;
// A step of the inner dim is a box's row of bytes.
constexpr int kLeftBytes = kTileRows * kBoxRowBytes;
constexpr int kHalfColumns = kTileColumns / 2, kHalfBytes = kHalfColumns * kBoxRowBytes;
constexpr int kStageBytes = kLeftBytes + kTileColumns * kBoxRowBytes;
constexpr int kSharedBytes =
    kStages * kStageBytes + kProductWarps * kOutBytes + 1024;  // the last to align

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
  // tile_empty is used in the first block of a pair, for both.
  std::uint64_t tile_full[kTilesAhead], tile_empty[kTilesAhead];
  WalkTile tiles[kTilesAhead];  // whose expert is kNoTile after the last
};

// What all threads of both blocks do first.
__device__ inline void begin_tiles(Shared& shared) {
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      hopper::make_barrier(shared.full[i], 1);
      hopper::make_barrier(shared.empty[i], kPair * kProductWarps);
    }
    for (int i = 0; i < kTilesAhead; ++i) {
      hopper::make_barrier(shared.tile_full[i], 1);
      hopper::make_barrier(shared.tile_empty[i], kPair * (kProductWarps + 1));
    }
    hopper::publish_barriers();
  }
  hopper::meet_cluster();
}

// One thread of a pair's first block: takes pairs of tiles and tells both blocks theirs.
template <GroupedProduct kProduct>
__device__ void find_tiles(Shared& shared, const Walk& walk, int* tickets) {
  RingPlace<kTilesAhead> told;
  Walker<kProduct> walker(walk);
  WalkTile tile;
  const int clusters = static_cast<int>(gridDim.x) / kPair;
  int ticket = static_cast<int>(blockIdx.x) / kPair;
  do {
    if (!walker.find(ticket, tile)) tile.expert = kNoTile;
    hopper::wait(shared.tile_empty[told.at], told.phase ^ 1);
    for (int rank = 0; rank < kPair; ++rank) {
      if (rank > 0) walker.go_on(tile);
      const std::uint32_t to = hopper::address_in(rank, &shared.tiles[told.at]);
      const auto* words = reinterpret_cast<const std::uint32_t*>(&tile);
      for (int i = 0; i < static_cast<int>(sizeof(WalkTile) / 4); ++i) {
        hopper::store_word(to + i * 4, words[i]);
      }
      hopper::publish_in(rank, shared.tile_full[told.at]);
    }
    told.advance();
    ticket = clusters + atomicAdd(tickets, 1);
  } while (tile.expert != kNoTile);
}

// For those lanes of a warp, of which the first is one. False after the last.
constexpr unsigned kWholeWarp = ~0u, kFirstLane = 1;
__device__ inline bool next_tile(Shared& shared, RingPlace<kTilesAhead>& told, WalkTile& tile,
                                 unsigned lanes = kWholeWarp) {
  hopper::wait(shared.tile_full[told.at], told.phase);
  tile = shared.tiles[told.at];
  __syncwarp(lanes);
  if (threadIdx.x % kWarp == 0) hopper::arrive_in(0, shared.tile_empty[told.at]);
  told.advance();
  return tile.expert != kNoTile;
}

// One thread: copies steps of kDepth to the first kUsed stages by copy_step(stage, tile, inner),
// which says how many bytes come.
template <int kDepth, int kUsed, class CopyStep>
__device__ void copy_tiles(Shared& shared, const CopyStep& copy_step) {
  RingPlace<kUsed> stage;
  RingPlace<kTilesAhead> told;
  WalkTile tile;
  while (next_tile(shared, told, tile, kFirstLane)) {
    for (int inner = 0; inner < tile.depth; inner += kDepth) {
      hopper::wait(shared.empty[stage.at], stage.phase ^ 1);
      if (tile.missing()) {
        hopper::arrive(shared.full[stage.at]);
      } else {
        copy_step(stage.at, tile, inner);
      }
      stage.advance();
    }
  }
}

// The right factor of a step, by copy(half, blocks) for halves of its columns. Where the blocks of
// a pair share it, each brings one half to both.
template <class Copy>
__device__ void copy_halves(const WalkTile& tile, const Copy& copy) {
  if (tile.shares_columns) {
    copy(hopper::cluster_rank(), std::uint16_t{(1 << kPair) - 1});
  } else {
    for (int half = 0; half < 2; ++half) copy(half, std::uint16_t{0});
  }
}

// A warp no longer reads a stage, which the copies of both blocks write.
__device__ inline void hand_back(Shared& shared, int stage) {
  __syncwarp();
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  if (lane < kPair) hopper::arrive_in(lane, shared.empty[stage]);
}

// What a kernel's blocks do, by copy_step(memory, full, stage, tile, inner) as above and, for each
// tile, multiply(sums, memory, shared, stage, tile, warp, look_ahead), which makes the sums of the
// warp's group and once calls look_ahead(), best where it has to wait: that takes the next tile. A
// thread that copies gets kCopyRegisters, one that multiplies kProductRegisters.
template <GroupedProduct kProduct, int kDepth, int kUsed, int kCopyRegisters, int kProductRegisters,
          class T, class Out, class CopyStep, class Multiply>
__device__ void make_tiles(const Work<T, Out>& work, const CUtensorMap& out,
                           const CopyStep& copy_step, const Multiply& multiply) {
  extern __shared__ std::uint8_t unaligned[];
  __shared__ Shared shared;
  std::uint8_t* memory = unaligned + (1024 - hopper::shared_address(unaligned) % 1024) % 1024;
  begin_tiles(shared);
  if (threadIdx.x < kCopyThreads) {
    hopper::give_registers_up<kCopyRegisters>();
    if (threadIdx.x == 0) {
      copy_tiles<kDepth, kUsed>(shared, [&](int stage, const WalkTile& tile, int inner) {
        copy_step(memory, shared.full[stage], stage, tile, inner);
      });
    } else if (threadIdx.x == kWarp && hopper::cluster_rank() == 0) {
      find_tiles<kProduct>(shared, work.walk, work.tickets);
    }
  } else {
    hopper::take_registers<kProductRegisters>();
    const int warp = static_cast<int>(threadIdx.x - kCopyThreads) / kWarp;
    Results<kProduct, T, Out> results(work, out, memory + kStages * kStageBytes + warp * kOutBytes);
    hopper::WideSums sums;
    RingPlace<kUsed> stage;
    RingPlace<kTilesAhead> told;
    WalkTile tile, next;
    bool more = next_tile(shared, told, tile);
    while (more) {
      multiply(sums, memory, shared, stage, tile, warp,
               [&] { more = next_tile(shared, told, next); });
      results.store(sums, tile, tile.row + warp * kWarpRows);
      tile = next;
    }
    results.finish();
  }
  // Else a block could end before the other has copied to it or arrived there for the last time.
  hopper::meet_cluster();
}

// Launches a block for each multiprocessor, in pairs. The squares of the results are added to
// *squares, if it is not null. The kernel gets `all`, whose part `work` learns here where the
// memory of the launch is.
template <class Kernel, class All, class T, class Out>
void launch_tiles(const Stream& stream, Kernel* kernel, const Maps& maps, const All& all,
                  Work<T, Out>& work, double* squares) {
  CudaQueue& queue = queue_of(stream);
  const std::int64_t places = squares == nullptr ? 0 : square_places(work.walk);
  // The tickets have the room of a number, for the sake of alignment.
  const std::size_t bytes = static_cast<std::size_t>(1 + places) * sizeof(double);
  auto* memory = static_cast<double*>(queue.scratch(bytes));
  check_cuda(cudaMemsetAsync(memory, 0, bytes, queue.stream()), "grouped product");
  work.tickets = reinterpret_cast<int*>(memory);
  work.squares = squares == nullptr ? nullptr : memory + 1;
  check_cuda(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes),
             "grouped product: shared memory");
  cudaLaunchAttribute pairs;
  pairs.id = cudaLaunchAttributeClusterDimension;
  pairs.val.clusterDim = {kPair, 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = static_cast<unsigned>(queue.multiprocessors() / kPair * kPair);
  config.blockDim = kCopyThreads + kProductThreads;
  config.dynamicSmemBytes = kSharedBytes;
  config.stream = queue.stream();
  config.attrs = &pairs;
  config.numAttrs = 1;
  check_cuda(cudaLaunchKernelEx(&config, kernel, maps, all), "grouped product");
  if (squares != nullptr) add_numbers(queue, memory + 1, places, squares);
}

}  // namespace bev::cuda::wgmma
