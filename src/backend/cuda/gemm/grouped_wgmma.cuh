// Grouped GEMM for Hopper with 16-bit operands: wgmma in steps of 64 along K (see
// grouped_pipeline.cuh).
#pragma once

#include "backend/cuda/gemm/grouped_pipeline.cuh"
#include "backend/cuda/gemm/linear_gemm.h"
#include "kernels/moe.h"

namespace bev::cuda::wgmma {

constexpr int kTileDepth = 64;
constexpr int kBoxColumns = kBoxRowBytes / 2;
constexpr int kBoxBytes = kTileDepth * kBoxRowBytes;  // of operands loaded as [64, 64] boxes

template <GroupedGemm kGemm>
__device__ void copy_step(std::uint8_t* to, std::uint64_t& full, const Maps& maps,
                          const WalkTile& tile, int inner) {
  using hopper::tma_load;
  constexpr bool kWeight = kGemm == GroupedGemm::kWgrad;
  const int row = kRagged - tile.depth + inner;  // used for kWeight
  hopper::arrive_expect_tx(full, kStageBytes);
  if constexpr (kWeight) {
    for (int i = 0; i < kTileRows / kBoxColumns; ++i) {
      tma_load({to + i * kBoxBytes, full}, maps.left, tile.row + i * kBoxColumns, row, tile.end,
               kRagged);
    }
  } else {
    tma_load({to, full}, maps.left, inner, tile.row);
  }
  copy_halves(tile, [&](int half, std::uint16_t blocks) {
    std::uint8_t* half_to = to + kLeftBytes + half * kHalfBytes;
    const int column = tile.column + half * kHalfColumns;
    if constexpr (kGemm == GroupedGemm::kForward) {
      tma_load({half_to, full, blocks}, maps.right, inner, column, tile.expert);
    } else {
      for (int i = 0; i < kHalfColumns / kBoxColumns; ++i) {
        const hopper::TmaDestination destination{half_to + i * kBoxBytes, full, blocks};
        const int x = column + i * kBoxColumns;
        if constexpr (kWeight) {
          tma_load(destination, maps.right, x, row, tile.end, kRagged);
        } else {
          tma_load(destination, maps.right, x, inner, tile.expert);
        }
      }
    }
  });
}

// Accumulates the warpgroup's rows over the K of the tile. A stage is released one step late, when
// the wgmma that read it have completed. look_ahead() is called while the last are in flight.
template <class T, GroupedGemm kGemm, class LookAhead>
__device__ void multiply_tile(hopper::WideSums& sums, std::uint8_t* stages, Shared& shared,
                              PipelineStage<kStages>& stage, const WalkTile& tile, int group,
                              const LookAhead& look_ahead) {
  constexpr bool kLeftInnerRows = kGemm == GroupedGemm::kWgrad;
  constexpr bool kRightInnerRows = kGemm != GroupedGemm::kForward;
  const bool works = tile.row + group * kGroupRows < tile.row_end;
  int before = -1;
  for (int inner = 0; inner < tile.depth; inner += kTileDepth) {
    hopper::wait(shared.full[stage.at], stage.phase);
    if (works) {
      const std::uint32_t at = hopper::shared_address(stages + stage.at * kStageBytes);
      const std::uint64_t left = hopper::operand(at + group * kBoxBytes, kBoxBytes);
      const std::uint64_t right = hopper::operand(at + kLeftBytes, kBoxBytes);
      const auto start_slice = [&](int i) {
        hopper::start_wgmma<T, kLeftInnerRows, kRightInnerRows>(
            sums, left + i * hopper::kSliceBytes<kLeftInnerRows> / 16,
            right + i * hopper::kSliceBytes<kRightInnerRows> / 16, inner + i > 0);
      };
      if (kGemm == GroupedGemm::kWgrad && tile.depth - inner < kTileDepth) {
        // The expert's rows end within this step, and zeros follow. Each slice is a wgmma group of
        // its own: with conditional wgmma inside a group, the compiler would serialise all of them.
        for (int i = 0; inner + 16 * i < tile.depth; ++i) {
          hopper::wgmma_fence();
          start_slice(i);
          hopper::wgmma_commit();
        }
      } else {
        hopper::wgmma_fence();
#pragma unroll
        for (int i = 0; i < kTileDepth / 16; ++i) start_slice(i);
        hopper::wgmma_commit();
      }
      hopper::wgmma_wait<1>();
    }
    if (before >= 0) hand_back(shared, before);
    before = stage.at;
    stage.advance();
  }
  look_ahead();
  hopper::wgmma_wait<0>();
  sums.settle();
  if (before >= 0) hand_back(shared, before);
  if (tile.depth == 0) sums.clear();
}

// Empty for other architectures, which has_wgmma() detects by its lack of static shared memory.
template <class T, GroupedGemm kGemm, class Out>
__global__ void __launch_bounds__(kProducerThreads + kConsumerThreads, 1)
    grouped_kernel(const __grid_constant__ Maps maps, const __grid_constant__ Work<T, Out> work) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  make_tiles<kGemm, kTileDepth, kStages, 56, 224>(
      work, maps.out,
      [&](std::uint8_t* memory, std::uint64_t& full, int stage, const WalkTile& tile, int inner) {
        copy_step<kGemm>(memory + stage * kStageBytes, full, maps, tile, inner);
      },
      [](hopper::WideSums& sums, std::uint8_t* memory, Shared& shared,
         PipelineStage<kStages>& stage, const WalkTile& tile, int warp, const auto& look_ahead) {
        multiply_tile<T, kGemm>(sums, memory, shared, stage, tile, warp * kWarpRows / kGroupRows,
                                look_ahead);
      });
#endif
}

template <class T, GroupedGemm kGemm, class Out>
void run(const Stream& stream, const GroupedGemmArgs& args) {
  constexpr bool kWeight = kGemm == GroupedGemm::kWgrad;
  constexpr bool kOutput = kGemm == GroupedGemm::kForward;
  const View& in = kOutput ? args.x : args.y;
  const View& out = kWeight ? args.w : kOutput ? args.y : args.x;
  const int columns = static_cast<int>(out.shape[out.shape.ndim() - 1]);
  const Maps maps{.left = kWeight ? ragged_map(in, kTileDepth) : tensor_map(in, kTileRows),
                  .right = kWeight ? ragged_map(args.x, kTileDepth)
                                   : tensor_map(args.w, kOutput ? kHalfColumns : kTileDepth),
                  .out = kWeight ? tensor_map(out, kWarpRows) : ragged_map(out, kWarpRows)};
  Work<T, Out> work{.walk = {.offsets = args.offsets,
                             .experts = static_cast<int>(args.w.shape[0]),
                             .rows = static_cast<int>(kWeight ? args.w.shape[1] : in.shape[0]),
                             .column_tiles = static_cast<int>(ceil_div(columns, kTileColumns)),
                             .depth = static_cast<int>(in.shape[1])},
                    .out = address<Out>(out),
                    .bias = kOutput ? address<T>(args.bias) : nullptr,
                    .columns = columns,
                    .beta = static_cast<float>(args.beta)};
  launch_tiles(stream, &grouped_kernel<T, kGemm, Out>, maps, work, work, args.squares);
}

// The forward of one weight, like that of a single expert.
template <class T, class Out>
void run_linear(const Stream& stream, const LinearGemm& gemm) {
  const View in{const_cast<void*>(gemm.a), gemm.in, {gemm.m, gemm.a_stride}};
  const View w{const_cast<void*>(gemm.b), gemm.in, {1, gemm.n, gemm.k}};
  const View out{gemm.c, gemm.out, {gemm.m, gemm.c_stride}};
  const Maps maps{.left = tensor_map(in, kTileRows, gemm.k),
                  .right = tensor_map(w, kHalfColumns),
                  .out = ragged_map(out, kWarpRows, gemm.n)};
  Work<T, Out> work{.walk = {.offsets = nullptr,
                             .experts = 1,
                             .rows = static_cast<int>(gemm.m),
                             .column_tiles = static_cast<int>(ceil_div(gemm.n, kTileColumns)),
                             .depth = static_cast<int>(gemm.k)},
                    .out = static_cast<const Out*>(gemm.c),
                    .bias = static_cast<const T*>(gemm.bias),
                    .columns = static_cast<int>(gemm.n),
                    .beta = 0};
  launch_tiles(stream, &grouped_kernel<T, GroupedGemm::kForward, Out>, maps, work, work, nullptr);
}
template <class T>
void run_linear(const Stream& stream, const LinearGemm& gemm) {
  if (gemm.out == Dtype::kF32) return run_linear<T, float>(stream, gemm);
  run_linear<T, T>(stream, gemm);
}

template <class T>
void run(const Stream& stream, const GroupedGemmArgs& args, GroupedGemm gemm) {
  switch (gemm) {
    case GroupedGemm::kForward:
      return run<T, GroupedGemm::kForward, T>(stream, args);
    case GroupedGemm::kDgrad:
      return run<T, GroupedGemm::kDgrad, T>(stream, args);
    case GroupedGemm::kWgrad:
      if (args.w.dtype == Dtype::kF32) return run<T, GroupedGemm::kWgrad, float>(stream, args);
      return run<T, GroupedGemm::kWgrad, T>(stream, args);
  }
}

}  // namespace bev::cuda::wgmma
