// Grouped GEMM for Hopper: warp-specialised persistent kernel; a TMA producer thread feeds wgmma
// consumers through an mbarrier ring of kStages stages. One block per SM, in 2-CTA clusters; a
// cluster takes pairs of [128, 256] tiles over all experts from an atomic counter (dynamic tile
// scheduler). Two consumer warpgroups compute 64 rows each and write results with TMA. Row counts
// of experts are read on the device.
//
//   block 0 loads  the left operand of tile 0 -> itself, columns 0 to 127 of the right -> both
//   block 1 loads  the left operand of tile 1 -> itself, columns 128 to 255 -> both (multicast)
//
// So a stage is full when both blocks have loaded, and empty when the consumers of both have read
// it. One thread of block 0 schedules tiles and writes them to both blocks.
#pragma once

#include "backend/cuda/device/grid.cuh"
#include "backend/cuda/device/values.cuh"
#include "backend/cuda/gemm/grouped_epilogue.cuh"
#include "backend/cuda/optim/optim_launchers.h"

namespace bev::cuda::wgmma {

constexpr int kStages = 4, kGroupRows = 64;
constexpr int kPair = 2;  // blocks of a cluster
constexpr int kProducerThreads = 128, kConsumerThreads = 256,
              kConsumerWarps = kConsumerThreads / kWarp;
// A step along K is one 128-byte row of a box.
constexpr int kLeftBytes = kTileRows * kBoxRowBytes;
constexpr int kHalfColumns = kTileColumns / 2, kHalfBytes = kHalfColumns * kBoxRowBytes;
constexpr int kStageBytes = kLeftBytes + kTileColumns * kBoxRowBytes;
constexpr int kSharedBytes =
    kStages * kStageBytes + kConsumerWarps * kOutBytes + 1024;  // the last 1024 for alignment

struct Maps {
  CUtensorMap left, right, out;
};

// Position in a ring of kSize, with the mbarrier phase parity.
template <int kSize>
struct PipelineStage {
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
  // tile_empty of the first block counts the consumers of both blocks.
  std::uint64_t tile_full[kTilesAhead], tile_empty[kTilesAhead];
  WalkTile tiles[kTilesAhead];  // expert is kNoTile after the last
};

// Initialises the barriers; called by all threads of both blocks first.
__device__ inline void begin_tiles(Shared& shared) {
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      hopper::init_mbarrier(shared.full[i], 1);
      hopper::init_mbarrier(shared.empty[i], kPair * kConsumerWarps);
    }
    for (int i = 0; i < kTilesAhead; ++i) {
      hopper::init_mbarrier(shared.tile_full[i], 1);
      hopper::init_mbarrier(shared.tile_empty[i], kPair * (kConsumerWarps + 1));
    }
    hopper::fence_mbarrier_init();
  }
  hopper::cluster_sync();
}

// Tile scheduler, one thread in the first block of a pair: takes pairs of tiles and writes each
// block its own.
template <GroupedGemm kGemm>
__device__ void find_tiles(Shared& shared, const Walk& walk, int* tickets) {
  PipelineStage<kTilesAhead> told;
  Walker<kGemm> walker(walk);
  WalkTile tile;
  const int clusters = static_cast<int>(gridDim.x) / kPair;
  int ticket = static_cast<int>(blockIdx.x) / kPair;
  do {
    if (!walker.find(ticket, tile)) tile.expert = kNoTile;
    hopper::wait(shared.tile_empty[told.at], told.phase ^ 1);
    for (int rank = 0; rank < kPair; ++rank) {
      if (rank > 0) walker.advance_in_pair(tile);
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

// Called by the given lanes of a warp, which include the first. Returns false after the last tile.
constexpr unsigned kWholeWarp = ~0u, kFirstLane = 1;
__device__ inline bool next_tile(Shared& shared, PipelineStage<kTilesAhead>& told, WalkTile& tile,
                                 unsigned lanes = kWholeWarp) {
  hopper::wait(shared.tile_full[told.at], told.phase);
  tile = shared.tiles[told.at];
  __syncwarp(lanes);
  if (threadIdx.x % kWarp == 0) hopper::arrive_in(0, shared.tile_empty[told.at]);
  told.advance();
  return tile.expert != kNoTile;
}

// Producer thread: loads steps of kDepth into the first kUsed stages through copy_step(stage, tile,
// inner), which arrives with the number of bytes.
template <int kDepth, int kUsed, class CopyStep>
__device__ void copy_tiles(Shared& shared, const CopyStep& copy_step) {
  PipelineStage<kUsed> stage;
  PipelineStage<kTilesAhead> told;
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

// Loads the right operand of a step by copy(half, blocks) for halves of its columns. If both blocks
// of the pair share it, each loads one half and multicasts it to both.
template <class Copy>
__device__ void copy_halves(const WalkTile& tile, const Copy& copy) {
  if (tile.shares_columns) {
    copy(hopper::cluster_rank(), std::uint16_t{(1 << kPair) - 1});
  } else {
    for (int half = 0; half < 2; ++half) copy(half, std::uint16_t{0});
  }
}

// The warp has finished reading a stage, which the TMA loads of both blocks write.
__device__ inline void hand_back(Shared& shared, int stage) {
  __syncwarp();
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  if (lane < kPair) hopper::arrive_in(lane, shared.empty[stage]);
}

// Body of the kernel. The producer calls copy_step(memory, full, stage, tile, inner) as above.
// Consumers call multiply(sums, memory, shared, stage, tile, warp, look_ahead) for each tile; it
// computes the sums of the warp's group and calls look_ahead(), which takes the next tile, exactly
// once, best while wgmma is in flight. Registers per thread: kCopyRegisters for producers,
// kProductRegisters for consumers.
template <GroupedGemm kGemm, int kDepth, int kUsed, int kProducerRegisters, int kConsumerRegisters,
          class T, class Out, class CopyStep, class Multiply>
__device__ void make_tiles(const Work<T, Out>& work, const CUtensorMap& out,
                           const CopyStep& copy_step, const Multiply& multiply) {
  extern __shared__ std::uint8_t unaligned[];
  __shared__ Shared shared;
  std::uint8_t* memory = unaligned + (1024 - hopper::shared_address(unaligned) % 1024) % 1024;
  begin_tiles(shared);
  if (threadIdx.x < kProducerThreads) {
    hopper::warpgroup_reg_dealloc<kProducerRegisters>();
    if (threadIdx.x == 0) {
      copy_tiles<kDepth, kUsed>(shared, [&](int stage, const WalkTile& tile, int inner) {
        copy_step(memory, shared.full[stage], stage, tile, inner);
      });
    } else if (threadIdx.x == kWarp && hopper::cluster_rank() == 0) {
      find_tiles<kGemm>(shared, work.walk, work.tickets);
    }
  } else {
    hopper::warpgroup_reg_alloc<kConsumerRegisters>();
    const int warp = static_cast<int>(threadIdx.x - kProducerThreads) / kWarp;
    Results<kGemm, T, Out> results(work, out, memory + kStages * kStageBytes + warp * kOutBytes);
    hopper::WideSums sums;
    PipelineStage<kUsed> stage;
    PipelineStage<kTilesAhead> told;
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
  // Otherwise a block could exit before its peer has multicast to it or arrived at its barriers.
  hopper::cluster_sync();
}

// Launches one block per SM, in pairs. Adds the squares of the results to *squares unless it is
// null. The kernel gets `all`; `work`, which is part of it, receives the pointers to scratch
// memory.
template <class Kernel, class All, class T, class Out>
void launch_tiles(const Stream& stream, Kernel* kernel, const Maps& maps, const All& all,
                  Work<T, Out>& work, double* squares) {
  CudaQueue& queue = queue_of(stream);
  const std::int64_t places = squares == nullptr ? 0 : square_places(work.walk);
  // The counter takes the space of a double, for alignment.
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
  config.blockDim = kProducerThreads + kConsumerThreads;
  config.dynamicSmemBytes = kSharedBytes;
  config.stream = queue.stream();
  config.attrs = &pairs;
  config.numAttrs = 1;
  check_cuda(cudaLaunchKernelEx(&config, kernel, maps, all), "grouped product");
  if (squares != nullptr) add_numbers(queue, memory + 1, places, squares);
}

}  // namespace bev::cuda::wgmma
