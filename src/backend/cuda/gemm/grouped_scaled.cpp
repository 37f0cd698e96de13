// Grouped FP8 GEMM: checks of shapes and device.
#include "backend/cuda/gemm/tensor_maps.h"
#include "backend/cuda/moe/moe_launchers.h"
#include "backend/cuda/runtime/queue.h"
#include "backend/cuda/tables.h"
#include "base/error.h"
#include "kernels/quantize.h"

namespace bev {

namespace {

void check_device(const Stream& stream) {
  BEV_CHECK(cuda::has_wgmma(queue_of(stream)) && cuda::has_tensor_maps(), ErrorKind::kDevice,
            "CUDA: experts in 8-bit floats need compute capability 9.0; take --fp8-recipe "
            "tensorwise, which leaves them in the model's precision");
}

bool is_whole(std::int64_t size) { return size % kScaleBlock == 0; }

}  // namespace

void cuda_grouped_scaled(const Stream& stream, const GroupedScaledGemmArgs& args) {
  const std::int64_t depth = args.a.payload.shape[1], columns = args.c.shape[1];
  BEV_CHECK(is_whole(depth) && is_whole(columns) &&
                args.b.payload.numel() == args.experts * columns * depth &&
                args.a.payload.shape[0] == args.c.shape[0],
            ErrorKind::kInternal, "grouped product: ", args.a.payload.shape, " and ",
            args.b.payload.shape, " to ", args.c.shape);
  if (args.c.numel() == 0) return;
  check_device(stream);
  (args.a.format == Fp8Format::kE4m3 ? cuda::grouped_scaled_e4m3 : cuda::grouped_scaled_e5m2)(
      stream, args);
}

void cuda_grouped_scaled_wgrad(const Stream& stream, const GroupedScaledWgradArgs& args) {
  BEV_CHECK(is_whole(args.w.shape[1]) && is_whole(args.w.shape[2]) &&
                args.dy.payload.shape[1] == args.x.payload.shape[1] &&
                args.dy.payload.shape[0] == args.w.shape[1] &&
                args.x.payload.shape[0] == args.w.shape[2],
            ErrorKind::kInternal, "grouped product: ", args.dy.payload.shape, " and ",
            args.x.payload.shape, " to ", args.w.shape);
  if (args.w.numel() == 0) return;
  check_device(stream);
  (args.dy.format == Fp8Format::kE4m3 ? cuda::grouped_scaled_wgrad_e4m3
                                      : cuda::grouped_scaled_wgrad_e5m2)(stream, args);
}

}  // namespace bev
