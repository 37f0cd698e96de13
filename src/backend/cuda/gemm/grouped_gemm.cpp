// Grouped GEMM: selects the kernel.
#include "backend/cuda/gemm/tensor_maps.h"
#include "backend/cuda/moe/moe_launchers.h"
#include "backend/cuda/optim/optim_launchers.h"
#include "backend/cuda/runtime/queue.h"
#include "kernels/moe.h"

namespace bev::cuda {

namespace {

// True for 16-bit operands with 16-byte aligned rows, as tensor cores and TMA require.
bool has_whole_words(const GroupedGemmArgs& args) {
  auto whole = [](const View& view) {
    return view.empty() || (reinterpret_cast<std::uintptr_t>(view.data) % 16 == 0 &&
                            view.shape[view.shape.ndim() - 1] % 8 == 0);
  };
  const Dtype dtype = args.x.dtype;
  return size_of(dtype) == 2 && args.y.dtype == dtype &&
         (args.w.dtype == dtype || args.w.dtype == Dtype::kF32) && whole(args.x) && whole(args.y) &&
         whole(args.w) && whole(args.bias);
}

// With fewer rows per expert the GEMM is bound by reading weights, which smaller tiles spread
// better.
constexpr std::int64_t kLeastRows = 16;

bool can_wgmma(const Stream& stream) { return has_wgmma(queue_of(stream)) && has_tensor_maps(); }
bool wgmma_supports(const Stream& stream, const GroupedGemmArgs& args) {
  return args.x.shape[0] >= kLeastRows * args.w.shape[0] && can_wgmma(stream);
}
auto* wgmma_of(const GroupedGemmArgs& args) {
  return args.x.dtype == Dtype::kBf16 ? grouped_wgmma_bf16 : grouped_wgmma_f16;
}

}  // namespace

void run_grouped_gemm(const Stream& stream, const GroupedGemmArgs& args, GroupedGemm gemm) {
  if (args.x.shape[0] == 0 && gemm != GroupedGemm::kWgrad) return;
  const bool in_words = has_whole_words(args);
  if (in_words && gemm == GroupedGemm::kForward && grouped_skinny_supports(args)) {
    return grouped_skinny(stream, args);
  }
  if (in_words && wgmma_supports(stream, args)) {  // fuses the sum of squares
    return wgmma_of(args)(stream, args, gemm);
  }
  (in_words && grouped_mma_supports(args) ? grouped_mma : grouped_plain)(stream, args, gemm);
  if (args.squares != nullptr) sum_squares(stream, {&args.w, 1}, args.squares);
}

void run_grouped_exact(const Stream& stream, const GroupedGemmArgs& args) {
  if (args.x.shape[0] == 0) return;
  constexpr GroupedGemm kForward = GroupedGemm::kForward;
  if (!has_whole_words(args)) return grouped_plain(stream, args, kForward);
  if (can_wgmma(stream)) return wgmma_of(args)(stream, args, kForward);
  BEV_CHECK(grouped_mma_supports(args), ErrorKind::kDevice, "CUDA: ", args.x.shape[0],
            " rows of experts are too many for an exact GEMM");
  grouped_mma(stream, args, kForward);
}

}  // namespace bev::cuda
