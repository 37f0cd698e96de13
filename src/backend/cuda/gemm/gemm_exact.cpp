// Exact GEMM of a linear layer's forward: a reference kernel defines the bits for each weight and
// layout, and for a number of rows a faster kernel is taken if it gives the same bits in a trial.
// So the choice may vary, between runs and numbers of rows, and the bits do not.
#include <fmt/format.h>

#include <optional>
#include <string>

#include "backend/cuda/gemm/exact_check.h"
#include "backend/cuda/gemm/gemm_plans.h"
#include "backend/cuda/gemm/launch_timer.h"
#include "backend/cuda/gemm/linear_gemm.h"
#include "backend/cuda/moe/moe_launchers.h"
#include "backend/cuda/runtime/queue.h"
#include "base/cache_file.h"
#include "base/divide.h"
#include "base/error.h"
#include "kernels/gemm.h"
#include "tensor/stream.h"

namespace bev {

namespace cuda {

bool LinearGemm::has_whole_words() const {
  constexpr std::int64_t kWord = 8;
  const auto bits = reinterpret_cast<std::uintptr_t>(a) | reinterpret_cast<std::uintptr_t>(b);
  return size_of(in) == 2 && k % kWord == 0 && a_stride % kWord == 0 && bits % 16 == 0;
}

bool is_linear(const GemmArgs& args) {
  return !args.transpose_a && args.transpose_b && args.beta == 0 && args.c.numel() > 0 &&
         args.b.shape[1] > 0;
}

LinearGemm linear_gemm(const GemmArgs& args) {
  const GemmShape shape = shape_of(args);  // checks the sizes
  return {.a = args.a.data,
          .b = args.b.data,
          .bias = args.bias.data,
          .c = args.c.data,
          .in = shape.in,
          .out = shape.out,
          .m = shape.m,
          .n = shape.n,
          .k = shape.k,
          .a_stride = args.a.shape[1],
          .c_stride = args.c.shape[1],
          .alpha = static_cast<float>(args.alpha)};
}

namespace {

GemmArgs gemm_args(const LinearGemm& gemm) {
  const auto view = [](const void* data, Dtype dtype, Shape shape) {
    return View{const_cast<void*>(data), dtype, shape};
  };
  return {.a = view(gemm.a, gemm.in, {gemm.m, gemm.a_stride}),
          .b = view(gemm.b, gemm.in, {gemm.n, gemm.k}),
          .c = view(gemm.c, gemm.out, {gemm.m, gemm.c_stride}),
          .transpose_b = true,
          .alpha = gemm.alpha,
          .bias = gemm.bias == nullptr ? View{} : view(gemm.bias, gemm.in, {gemm.n}),
          .a_columns = gemm.k,
          .c_columns = gemm.n};
}

}  // namespace

void run_reference(const Stream& stream, const LinearGemm& gemm) {
  if (linear_wgmma_supports(queue_of(stream), gemm)) {
    return (gemm.in == Dtype::kBf16 ? linear_wgmma_bf16 : linear_wgmma_f16)(stream, gemm);
  }
  if (gemm.has_whole_words()) return linear_mma(stream, gemm);
  gemm_plain(stream, gemm_args(gemm));
}

namespace {

// Operands of a trial with the sizes of a GEMM, and two results.
class Trial {
 public:
  explicit Trial(const LinearGemm& gemm)
      : gemm_(gemm), result_bytes_(bytes_of(gemm.m * gemm.c_stride, gemm.out)) {
    const std::size_t a = bytes_of(gemm.m * gemm.a_stride, gemm.in);
    const std::size_t b = bytes_of(gemm.n * gemm.k, gemm.in);
    const std::size_t bias = bytes_of(gemm.n, gemm.in);
    if (cudaMalloc(&memory_, a + b + bias + 2 * result_bytes_ + kFlagBytes) != cudaSuccess) {
      cudaGetLastError();  // running out of memory is not an error here
      memory_ = nullptr;
      return;
    }
    auto* at = static_cast<std::byte*>(memory_);
    a_ = at;
    b_ = at + a;
    bias_ = at + a + b;
    result_ = at + a + b + bias;
  }
  ~Trial() { cudaFree(memory_); }
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;

  bool made() const { return memory_ != nullptr; }
  void fill(CudaQueue& queue) {
    fill_trial(queue, {a_, gemm_.in, gemm_.m, gemm_.k, gemm_.a_stride, true, 0, 1});
    fill_trial(queue, {b_, gemm_.in, gemm_.n, gemm_.k, gemm_.k, false, 0, 2});
    // As small as the sums are.
    fill_trial(queue, {bias_, gemm_.in, 1, gemm_.n, gemm_.n, false, -10, 3});
    clear(queue, 0);
    clear(queue, 1);
  }
  void clear(CudaQueue& queue, int result) {
    check_cuda(cudaMemsetAsync(gemm(result).c, 0, result_bytes_, queue.stream()), "clear results");
  }
  // The GEMM on these operands.
  LinearGemm gemm(int result) const {
    LinearGemm out = gemm_;
    out.a = a_;
    out.b = b_;
    if (out.bias != nullptr) out.bias = bias_;
    out.c = result_ + static_cast<std::size_t>(result) * result_bytes_;
    return out;
  }
  // The host waits.
  bool results_are_equal(CudaQueue& queue) {
    auto* flag = reinterpret_cast<int*>(result_ + 2 * result_bytes_);
    return are_equal(queue, result_, result_ + result_bytes_, result_bytes_, flag);
  }

 private:
  static constexpr std::size_t kAlignment = 256, kFlagBytes = kAlignment;
  static std::size_t bytes_of(std::int64_t elements, Dtype dtype) {
    return round_up(static_cast<std::size_t>(elements) * size_of(dtype), kAlignment);
  }
  LinearGemm gemm_;
  void* memory_ = nullptr;
  std::byte *a_ = nullptr, *b_ = nullptr, *bias_ = nullptr, *result_ = nullptr;
  std::size_t result_bytes_;
};

GemmCall call_of(const LinearGemm& gemm) {
  return {.a = gemm.a,
          .b = gemm.b,
          .bias = gemm.bias,
          .c = {gemm.c, gemm.out, {gemm.m, gemm.c_stride}},
          .alpha = gemm.alpha};
}

}  // namespace
}  // namespace cuda

using cuda::LinearGemm;

namespace {
constexpr std::string_view kReferenceName = "reference", kRingName = "ring";
// Raised when a reference kernel changes its bits.
constexpr int kReferenceVersion = 1;
}  // namespace

// Prefills have any number of rows; only round ones are worth the measurement. Trials are aligned,
// so that they tell nothing about a layout that is not.
bool CudaGemm::worth_measuring(const GemmShape& shape) {
  constexpr std::int64_t kFewRows = 512, kRound = 64;
  return shape.alignment == kGemmAlignment && (shape.m <= kFewRows || shape.m % kRound == 0);
}

// The ring and the reference take the same order by design, but maybe by different instructions.
// One trial for each of these tells.
bool CudaGemm::ring_is_exact(const Stream& stream, const LinearGemm& gemm) {
  if (!cuda::gemm_ring_supports(gemm)) return false;
  CudaQueue& queue = queue_of(stream);
  const std::pair<Dtype, bool> kind{gemm.in, cuda::linear_wgmma_supports(queue, gemm)};
  if (const auto found = exact_rings_.find(kind); found != exact_rings_.end()) {
    return found->second;
  }
  if (queue.capturing()) return false;
  constexpr std::int64_t kRows = 32, kColumns = 512, kDepth = 4096;
  LinearGemm sizes{.a = nullptr,
                   .b = nullptr,
                   .bias = nullptr,
                   .c = nullptr,
                   .in = gemm.in,
                   .out = Dtype::kF32,
                   .m = kRows,
                   .n = kColumns,
                   .k = kDepth,
                   .a_stride = kDepth,
                   .c_stride = kind.second ? kColumns : kColumns + 1,
                   .alpha = 1};
  cuda::Trial trial(sizes);
  if (!trial.made()) return false;
  trial.fill(queue);
  cuda::run_reference(stream, trial.gemm(0));
  cuda::gemm_ring(stream, trial.gemm(1), true);
  return exact_rings_[kind] = trial.results_are_equal(queue);
}

// Returns false if there is no memory to measure in.
bool CudaGemm::measure_exact(const Stream& stream, const GemmShape& shape, const LinearGemm& gemm,
                             ExactPlan& plan) {
  CudaQueue& queue = queue_of(stream);
  cuda::Trial trial(gemm);
  if (!trial.made()) return false;
  trial.fill(queue);
  const LinearGemm again = trial.gemm(1);
  LaunchTimer timer(queue);
  float best = LaunchTimer::kNever;
  // Returns true if a launch gives the bits of the reference in less time than all before.
  const auto is_better = [&](const auto& launch) {
    trial.clear(queue, 1);
    if (!launch() || !trial.results_are_equal(queue)) return false;
    const float time = timer.milliseconds(launch, best);
    if (time >= best) return false;
    best = time;
    return true;
  };
  const auto run_ring = [&] {
    cuda::gemm_ring(stream, again, true);
    return true;
  };
  cuda::run_reference(stream, trial.gemm(0));
  is_better([&] {
    cuda::run_reference(stream, again);
    return true;
  });
  const bool ring = plan.kernel == ExactKernel::kRing;
  plan.kernel = ring && is_better(run_ring) ? ExactKernel::kRing : ExactKernel::kReference;
  auto library = std::make_unique<GemmPlan>(shape);
  const GemmCall call = cuda::call_of(again);
  library->point(call);
  for (const cublasLtMatmulAlgo_t& algorithm : library->unsplit_proposals(handle_)) {
    if (!is_better([&] {
          return library->start(handle_, workspace_, queue.stream(), call, call.c.data,
                                algorithm) == CUBLAS_STATUS_SUCCESS;
        })) {
      continue;
    }
    plan.kernel = ExactKernel::kLibrary;
    library->take(algorithm);
  }
  if (plan.kernel == ExactKernel::kLibrary) plan.library = std::move(library);
  return true;
}

CudaGemm::ExactPlan CudaGemm::choose_exact(const Stream& stream, const GemmShape& shape,
                                           const LinearGemm& gemm) {
  ExactPlan plan;
  if (ring_is_exact(stream, gemm)) plan.kernel = ExactKernel::kRing;
  if (!worth_measuring(shape)) return plan;
  const std::string key =
      cache_ ? fmt::format("exact {}, {}", kReferenceVersion, cache_key(shape)) : "";
  if (std::optional<std::string> known = cache_ ? cache_->find(key) : std::nullopt) {
    if (*known == kRingName && plan.kernel == ExactKernel::kRing) return plan;
    if (*known == kReferenceName) {
      plan.kernel = ExactKernel::kReference;
      return plan;
    }
    plan.library = std::make_unique<GemmPlan>(shape);
    if (plan.library->restore(handle_, *known)) {
      plan.kernel = ExactKernel::kLibrary;
      return plan;
    }
  }
  if (measure_exact(stream, shape, gemm, plan) && cache_) {
    cache_->put(key, plan.kernel == ExactKernel::kLibrary ? plan.library->saved()
                     : plan.kernel == ExactKernel::kRing  ? std::string(kRingName)
                                                          : std::string(kReferenceName));
  }
  return plan;
}

void CudaGemm::run_exact(const Stream& stream, const GemmArgs& args) {
  const LinearGemm gemm = cuda::linear_gemm(args);
  GemmShape shape = shape_of(args);
  const GemmCall call = call_of(args);
  shape.alignment = alignment_of(call);
  if (gemm.alpha != 1) return cuda::run_reference(stream, gemm);
  auto found = exact_plans_.find(shape);
  if (found == exact_plans_.end()) {
    if (queue_of(stream).capturing()) {
      const bool ring = ring_is_exact(stream, gemm);
      return ring ? cuda::gemm_ring(stream, gemm, true) : cuda::run_reference(stream, gemm);
    }
    found = exact_plans_.emplace(shape, choose_exact(stream, shape, gemm)).first;
  }
  ExactPlan& plan = found->second;
  switch (plan.kernel) {
    case ExactKernel::kReference:
      return cuda::run_reference(stream, gemm);
    case ExactKernel::kRing:
      return cuda::gemm_ring(stream, gemm, true);
    case ExactKernel::kLibrary:
      plan.library->point(call);
      return plan.library->run(handle_, workspace_, queue_of(stream).stream(), call);
  }
}

}  // namespace bev
