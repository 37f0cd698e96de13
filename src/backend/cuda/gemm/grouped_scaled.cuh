// Grouped FP8 GEMM for Hopper with block scales, in steps of 128 along K: wgmma computes the
// partial sums of a step, which are added to the tile in f32 times the scales of both operands.
// Both operands are K-major. Left is x or dy (scales per run of 128), right a weight (scales per
// 128 x 128 square); for wgrad they are the transposes of dy and x (both per run).
#pragma once

#include "backend/cuda/gemm/grouped_pipeline.cuh"
#include "base/divide.h"
#include "kernels/quantize.h"

namespace bev::cuda::wgmma {

constexpr int kScaledDepth = static_cast<int>(kScaleBlock);
static_assert(kScaledDepth == kBoxRowBytes && kScaledDepth == kHalfColumns);

template <class Out>
struct ScaledWork {
  Work<Out, Out> work;
  const float *left, *right;  // scales
  int left_stride, right_stride;
  // The matrix of expert e begins at [e row_step, e column_step] in the right operand.
  int row_step, column_step;
};

// Column of the first run of the tile's expert in the transposes (run_begin).
__device__ inline int first_turned(const WalkTile& tile) {
  return ((tile.end - tile.depth) / kScaledDepth + tile.expert) * kScaledDepth;
}

// wgrad has a scale per row and column of each step; they are stored in the memory of the last
// stage.
template <GroupedGemm kGemm>
inline constexpr int kUsedStages = kGemm == GroupedGemm::kWgrad ? kStages - 1 : kStages;
__device__ inline float* scales_of(std::uint8_t* memory, int stage) {
  return reinterpret_cast<float*>(memory + (kStages - 1) * kStageBytes) +
         stage * (kTileRows + kTileColumns);
}

// Loads a step of the right operand, whose columns are rows, starting at y, of the matrix in
// memory.
__device__ inline void copy_right(std::uint8_t* stage, std::uint64_t& full, const Maps& maps,
                                  const WalkTile& tile, int x, int y) {
  copy_halves(tile, [&](int half, std::uint16_t blocks) {
    hopper::tma_load({stage + kLeftBytes + half * kHalfBytes, full, blocks}, maps.right, x,
                     y + half * kHalfColumns);
  });
}

// Loads the scales of all rows and columns of a step, and both operands.
template <class Out>
__device__ void copy_weight_step(std::uint8_t* memory, int stage, std::uint64_t& full,
                                 const Maps& maps, const ScaledWork<Out>& scaled,
                                 const WalkTile& tile, int inner) {
  std::uint8_t* to = memory + stage * kStageBytes;
  float* scales = scales_of(memory, stage);
  const int at = first_turned(tile) + inner;
  const std::int64_t run = at / kScaledDepth;
  const int columns = min(kTileColumns, scaled.work.columns - tile.column);
  const int left_bytes = kTileRows * 4, right_bytes = columns * 4;
  hopper::arrive_expect_tx(full, kStageBytes + left_bytes + right_bytes);
  hopper::tma_load_bytes(scales, scaled.left + run * scaled.left_stride + tile.row, left_bytes,
                         full);
  hopper::tma_load_bytes(scales + kTileRows, scaled.right + run * scaled.right_stride + tile.column,
                         right_bytes, full);
  hopper::tma_load({to, full}, maps.left, at, tile.row);
  copy_right(to, full, maps, tile, at, tile.column);
}

template <class Out>
__device__ void copy_row_step(std::uint8_t* memory, int stage, std::uint64_t& full,
                              const Maps& maps, const ScaledWork<Out>& scaled, const WalkTile& tile,
                              int inner) {
  std::uint8_t* to = memory + stage * kStageBytes;
  hopper::arrive_expect_tx(full, kStageBytes);
  hopper::tma_load({to, full}, maps.left, inner, tile.row);
  copy_right(to, full, maps, tile, tile.expert * scaled.column_step + inner,
             tile.expert * scaled.row_step + tile.column);
}

// Scales of a lane's sums in one step: of its two rows, and of the columns.
struct StepScales {
  float2 rows;
  float2 halves;         // of the halves of the tile's columns, each within one square
  const float* columns;  // starting at the lane's first column, if each column has its own
};

// Addresses of row and square scales, step by step.
struct LaneScales {
  const float *top, *bottom, *right;
  int left_stride, right_half;

  template <class Out>
  __device__ LaneScales(const ScaledWork<Out>& scaled, const WalkTile& tile, int warp)
      : left_stride(scaled.left_stride),
        right_half(tile.column + kHalfColumns < scaled.work.columns ? scaled.right_stride : 0) {
    const int lane = static_cast<int>(threadIdx.x % kWarp);
    const int row = tile.row + warp * kWarpRows + lane / 4, last = tile.row_end - 1;
    top = scaled.left + min(row, last);
    bottom = scaled.left + min(row + 8, last);
    const int down = (tile.expert * scaled.row_step + tile.column) / kScaledDepth;
    const int across = tile.expert * scaled.column_step / kScaledDepth;
    right = scaled.right + static_cast<std::int64_t>(down) * scaled.right_stride + across;
  }
  __device__ StepScales at(int step) const {
    const std::int64_t down = static_cast<std::int64_t>(step) * left_stride;
    return {{__ldg(top + down), __ldg(bottom + down)},
            {__ldg(right + step), __ldg(right + step + right_half)},
            nullptr};
  }
};

// The scales that copy_weight_step() loaded.
__device__ inline StepScales copied_scales(const float* scales, int warp) {
  const int lane = static_cast<int>(threadIdx.x % kWarp), row = warp * kWarpRows + lane / 4;
  return {{scales[row], scales[row + 8]}, {}, scales + kTileRows + 2 * (lane % 4)};
}

// Adds the scaled partial sums of half of the columns to the tile.
template <GroupedGemm kGemm, int kHalf>
__device__ void add_half(hopper::WideSums& sums, const hopper::HalfSums& part,
                         const StepScales& scale) {
  float* to = sums.at + kHalf * 64;
  if constexpr (kGemm == GroupedGemm::kWgrad) {
#pragma unroll
    for (int i = 0; i < 64; i += 4) {
      const float2 columns =
          *reinterpret_cast<const float2*>(scale.columns + kHalf * kHalfColumns + 2 * i);
      to[i] += part.at[i] * (scale.rows.x * columns.x);
      to[i + 1] += part.at[i + 1] * (scale.rows.x * columns.y);
      to[i + 2] += part.at[i + 2] * (scale.rows.y * columns.x);
      to[i + 3] += part.at[i + 3] * (scale.rows.y * columns.y);
    }
  } else {
    const float right = kHalf == 0 ? scale.halves.x : scale.halves.y;
    const float top = scale.rows.x * right, bottom = scale.rows.y * right;
#pragma unroll
    for (int i = 0; i < 64; i += 4) {
      to[i] += part.at[i] * top;
      to[i + 1] += part.at[i + 1] * top;
      to[i + 2] += part.at[i + 2] * bottom;
      to[i + 3] += part.at[i + 3] * bottom;
    }
  }
}

template <Fp8Format kLeft, int kHalf>
__device__ void multiply_half(hopper::HalfSums& part, std::uint32_t stage, int group) {
  const std::uint64_t left = hopper::operand(stage + group * kGroupRows * kBoxRowBytes, 0);
  const std::uint64_t right = hopper::operand(stage + kLeftBytes + kHalf * kHalfBytes, 0);
  constexpr int kSlice = 32;  // bytes of K per wgmma
  hopper::wgmma_fence();
#pragma unroll
  for (int i = 0; i < kScaledDepth / kSlice; ++i) {
    hopper::start_wgmma<kLeft>(part, left + i * kSlice / 16, right + i * kSlice / 16, i > 0);
  }
  hopper::wgmma_commit();
  hopper::wgmma_wait<0>();
  part.settle();
}

// A step of the warpgroup. Calls ready() when the stage is no longer read.
template <Fp8Format kLeft, GroupedGemm kGemm, class Ready>
__device__ void multiply_step(hopper::WideSums& sums, std::uint32_t stage, int group,
                              bool two_halves, const StepScales& scale, const Ready& ready) {
  constexpr bool kReadsScales = kGemm == GroupedGemm::kWgrad;
  hopper::HalfSums part;
  multiply_half<kLeft, 0>(part, stage, group);
  add_half<kGemm, 0>(sums, part, scale);
  if (two_halves) multiply_half<kLeft, 1>(part, stage, group);
  if (!kReadsScales) ready();
  if (two_halves) add_half<kGemm, 1>(sums, part, scale);
  if (kReadsScales) ready();
}

// While one warpgroup adds its partial sums, the wgmma of the other runs.
template <Fp8Format kLeft, GroupedGemm kGemm, class Out>
__device__ void multiply_scaled_tile(hopper::WideSums& sums, std::uint8_t* memory, Shared& shared,
                                     PipelineStage<kUsedStages<kGemm>>& stage,
                                     const ScaledWork<Out>& scaled, const WalkTile& tile,
                                     int warp) {
  constexpr bool kWeight = kGemm == GroupedGemm::kWgrad;
  const int group = warp * kWarpRows / kGroupRows;
  const bool works = tile.row + group * kGroupRows < tile.row_end;
  const bool two_halves = tile.column + kHalfColumns < scaled.work.columns;
  const int steps = ceil_div(tile.depth, kScaledDepth);
#pragma unroll
  for (float& sum : sums.at) sum = 0;
  if (steps == 0) return;
  const LaneScales scales(scaled, tile, warp);
  StepScales now, next;
  if constexpr (!kWeight) next = scales.at(0);
  for (int step = 0; step < steps; ++step) {
    if constexpr (!kWeight) {
      now = next;
      if (step + 1 < steps) next = scales.at(step + 1);
    }
    hopper::wait(shared.full[stage.at], stage.phase);
    if constexpr (kWeight) now = copied_scales(scales_of(memory, stage.at), warp);
    const std::uint32_t at = hopper::shared_address(memory + stage.at * kStageBytes);
    const auto ready = [&] { hand_back(shared, stage.at); };
    if (works) {
      multiply_step<kLeft, kGemm>(sums, at, group, two_halves, now, ready);
    } else {
      ready();
    }
    stage.advance();
  }
}

// Empty for other architectures, like grouped_kernel.
template <Fp8Format kLeft, GroupedGemm kGemm, class Out>
__global__ void __launch_bounds__(kProducerThreads + kConsumerThreads, 1)
    grouped_scaled_kernel(const __grid_constant__ Maps maps,
                          const __grid_constant__ ScaledWork<Out> scaled) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  constexpr int kUsed = kUsedStages<kGemm>;
  make_tiles<kGemm, kScaledDepth, kUsed, 40, 232>(
      scaled.work, maps.out,
      [&](std::uint8_t* memory, std::uint64_t& full, int stage, const WalkTile& tile, int inner) {
        auto* copy = kGemm == GroupedGemm::kWgrad ? copy_weight_step<Out> : copy_row_step<Out>;
        copy(memory, stage, full, maps, scaled, tile, inner);
      },
      [&](hopper::WideSums& sums, std::uint8_t* memory, Shared& shared, PipelineStage<kUsed>& stage,
          const WalkTile& tile, int warp, const auto& look_ahead) {
        multiply_scaled_tile<kLeft, kGemm>(sums, memory, shared, stage, scaled, tile, warp);
        look_ahead();
      });
#endif
}

inline int stride_of(const ScaledView& factor) { return static_cast<int>(factor.scales.shape[1]); }

template <Fp8Format kLeft, class Out>
void run_scaled(const Stream& stream, const GroupedScaledGemmArgs& args) {
  const View &left = args.a.payload, &right = args.b.payload;
  const int columns = static_cast<int>(args.c.shape[1]), depth = static_cast<int>(left.shape[1]);
  const Maps maps{.left = tensor_map(left, kTileRows),
                  .right = tensor_map(right, kHalfColumns),
                  .out = ragged_map(args.c, kWarpRows)};
  constexpr GroupedGemm kGemm = GroupedGemm::kForward;
  ScaledWork<Out> scaled{
      .work = {.walk = {.offsets = args.offsets,
                        .experts = static_cast<int>(args.experts),
                        .rows = static_cast<int>(left.shape[0]),
                        .column_tiles = static_cast<int>(ceil_div(columns, kTileColumns)),
                        .depth = depth},
               .out = address<Out>(args.c),
               .bias = address<Out>(args.bias),
               .columns = columns,
               .beta = 0},
      .left = address<float>(args.a.scales),
      .right = address<float>(args.b.scales),
      .left_stride = stride_of(args.a),
      .right_stride = stride_of(args.b),
      .row_step = args.side_by_side() ? 0 : columns,
      .column_step = args.side_by_side() ? depth : 0};
  launch_tiles(stream, &grouped_scaled_kernel<kLeft, kGemm, Out>, maps, scaled, scaled.work,
               nullptr);
}

template <Fp8Format kLeft, class Out>
void run_scaled_wgrad(const Stream& stream, const GroupedScaledWgradArgs& args) {
  const int columns = static_cast<int>(args.w.shape[2]);
  const Maps maps{.left = tensor_map(args.dy.payload, kTileRows),
                  .right = tensor_map(args.x.payload, kHalfColumns),
                  .out = tensor_map(args.w, kWarpRows)};
  constexpr GroupedGemm kGemm = GroupedGemm::kWgrad;
  ScaledWork<Out> scaled{
      .work = {.walk = {.offsets = args.offsets,
                        .experts = static_cast<int>(args.w.shape[0]),
                        .rows = static_cast<int>(args.w.shape[1]),
                        .column_tiles = static_cast<int>(ceil_div(columns, kTileColumns)),
                        .depth = 0},
               .out = address<Out>(args.w),
               .bias = nullptr,
               .columns = columns,
               .beta = static_cast<float>(args.beta)},
      .left = address<float>(args.dy.scales),
      .right = address<float>(args.x.scales),
      .left_stride = stride_of(args.dy),
      .right_stride = stride_of(args.x),
      .row_step = 0,
      .column_step = 0};
  launch_tiles(stream, &grouped_scaled_kernel<kLeft, kGemm, Out>, maps, scaled, scaled.work,
               args.squares);
}

// Calls f(Out{}) for the dtype of the result.
template <class F>
void visit_result(Dtype dtype, const F& f) {
  switch (dtype) {
    case Dtype::kBf16:
      return f(Bf16{});
    case Dtype::kF16:
      return f(F16{});
    default:
      return f(float{});
  }
}

template <Fp8Format kLeft>
void grouped_scaled_of(const Stream& stream, const GroupedScaledGemmArgs& args) {
  visit_result(args.c.dtype, [&](auto type) { run_scaled<kLeft, decltype(type)>(stream, args); });
}

template <Fp8Format kLeft>
void grouped_scaled_wgrad_of(const Stream& stream, const GroupedScaledWgradArgs& args) {
  visit_result(args.w.dtype,
               [&](auto type) { run_scaled_wgrad<kLeft, decltype(type)>(stream, args); });
}

}  // namespace bev::cuda::wgmma
