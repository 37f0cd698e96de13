// cuBLASLt descriptors, heuristics and autotuning for one GEMM shape.
#include "backend/cuda/gemm/gemm_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>

#include "backend/cuda/gemm/blas_library.h"
#include "backend/cuda/gemm/launch_timer.h"
#include "backend/cuda/runtime/queue.h"
#include "base/error.h"

namespace bev {

void check_blas(cublasStatus_t status, const char* what) {
  BEV_CHECK(status == CUBLAS_STATUS_SUCCESS, ErrorKind::kDevice, "cuBLASLt: ", what, ": ",
            blas_library().status_text(status));
}

namespace {

constexpr int kProposals = 32;

cudaDataType_t data_type(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF32:
      return CUDA_R_32F;
    case Dtype::kBf16:
      return CUDA_R_16BF;
    case Dtype::kF16:
      return CUDA_R_16F;
    default:
      BEV_FAIL(ErrorKind::kDevice, "matrix products of ", name_of(dtype), " are not for the GPU");
  }
}

cudaDataType_t data_type(Dtype dtype, const ScaledOperand& scaled) {
  if (dtype != Dtype::kU8) return data_type(dtype);
  return scaled.format == Fp8Format::kE4m3 ? CUDA_R_8F_E4M3 : CUDA_R_8F_E5M2;
}

cublasLtMatmulMatrixScale_t scale_mode(ScaleBlock block) {
  switch (block) {
    case ScaleBlock::kRun:
      return CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    case ScaleBlock::kSquare:
      return CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
    default:
      return CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
  }
}

// cuBLASLt is column-major: the columns of a row-major matrix are its rows.
cublasLtMatrixLayout_t make_layout(cudaDataType_t type, std::int64_t rows, std::int64_t columns,
                                   std::int64_t stride = 0) {
  cublasLtMatrixLayout_t layout = nullptr;
  check_blas(
      blas_library().create_layout(&layout, type, static_cast<std::uint64_t>(rows),
                                   static_cast<std::uint64_t>(columns), stride > 0 ? stride : rows),
      "describe a matrix");
  return layout;
}

}  // namespace

template <class Value>
void GemmPlan::set(cublasLtMatmulDescAttributes_t what, const Value& value) {
  check_blas(blas_library().set_operation(operation_, what, &value, sizeof(value)),
             "describe a product");
}

// cuBLASLt is column-major and computes c^T = op(b)^T op(a)^T: its first operand is b, its second
// a.
GemmPlan::GemmPlan(const GemmShape& shape) : shape_(shape), scaled_(shape.in == Dtype::kU8) {
  check_blas(blas_library().create_operation(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F),
             "describe a product");
  set(CUBLASLT_MATMUL_DESC_TRANSA, shape.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(CUBLASLT_MATMUL_DESC_TRANSB, shape.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (shape.bias) {
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, data_type(scaled_ ? shape.out : shape.in));
  }
  if (scaled_) {
    set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, scale_mode(shape.b.block));
    set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, scale_mode(shape.a.block));
    set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<std::int8_t>(shape.fast));
  }
  cudaDataType_t first = data_type(shape.in, shape.b), second = data_type(shape.in, shape.a);
  first_ = shape.transpose_b ? make_layout(first, shape.k, shape.n)
                             : make_layout(first, shape.n, shape.k);
  second_ = shape.transpose_a ? make_layout(second, shape.m, shape.k, shape.a_stride)
                              : make_layout(second, shape.k, shape.m, shape.a_stride);
  result_ = make_layout(data_type(shape.out), shape.n, shape.m, shape.c_stride);
}

GemmPlan::~GemmPlan() {
  blas_library().destroy_layout(result_);
  blas_library().destroy_layout(second_);
  blas_library().destroy_layout(first_);
  blas_library().destroy_operation(operation_);
}

std::vector<cublasLtMatmulHeuristicResult_t> GemmPlan::find_proposals(
    cublasLtHandle_t handle, int most, cublasStatus_t& status) const {
  cublasLtMatmulPreference_t preference = nullptr;
  check_blas(blas_library().create_preference(&preference), "prefer");
  auto prefer = [&](cublasLtMatmulPreferenceAttributes_t what, const auto& value) {
    check_blas(blas_library().set_preference(preference, what, &value, sizeof(value)), "prefer");
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kGemmWorkspaceBytes);
  // The heuristic assumes full alignment unless a smaller one is set.
  for (auto what :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    if (shape_.alignment < kGemmAlignment) prefer(what, shape_.alignment);
  }
  std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<std::size_t>(most));
  int count = 0;
  status = blas_library().propose_algorithms(handle, operation_, first_, second_, result_, result_,
                                             preference, most, found.data(), &count);
  blas_library().destroy_preference(preference);
  found.resize(status == CUBLAS_STATUS_SUCCESS ? static_cast<std::size_t>(count) : 0);
  return found;
}

std::vector<cublasLtMatmulHeuristicResult_t> GemmPlan::proposals(cublasLtHandle_t handle,
                                                                 int most) const {
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
  std::vector<cublasLtMatmulHeuristicResult_t> found = find_proposals(handle, most, status);
  BEV_CHECK(!found.empty(), ErrorKind::kDevice, "cuBLASLt: no algorithm for a product to [",
            shape_.m, ", ", shape_.n, "] over ", shape_.k, " in ", name_of(shape_.out), ": ",
            blas_library().status_text(status));
  return found;
}

std::vector<cublasLtMatmulAlgo_t> GemmPlan::unsplit_proposals(cublasLtHandle_t handle) const {
  const auto value_of = [](const cublasLtMatmulAlgo_t& algorithm,
                           cublasLtMatmulAlgoConfigAttributes_t what, auto value) {
    std::size_t written = 0;
    return blas_library().algorithm_value(&algorithm, what, &value, sizeof(value), &written) ==
                   CUBLAS_STATUS_SUCCESS
               ? value
               : ~decltype(value){};
  };
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
  std::vector<cublasLtMatmulAlgo_t> out;
  for (const auto& proposal : find_proposals(handle, kProposals, status)) {
    const auto split = value_of(proposal.algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, std::int32_t{1});
    const auto reduction =
        value_of(proposal.algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, std::uint32_t{0});
    if (split >= 0 && split <= 1 && reduction == CUBLASLT_REDUCTION_SCHEME_NONE) {
      out.push_back(proposal.algo);
    }
  }
  return out;
}

void GemmPlan::point(const GemmCall& call) {
  if (shape_.bias) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, call.bias);
  if (!scaled_) return;
  set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, call.b_scales);
  set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, call.a_scales);
}

cublasStatus_t GemmPlan::start(cublasLtHandle_t handle, void* workspace, cudaStream_t stream,
                               const GemmCall& call, void* to,
                               const cublasLtMatmulAlgo_t& algorithm) const {
  return blas_library().matmul(handle, operation_, &call.alpha, call.b, first_, call.a, second_,
                               &call.beta, call.c.data, result_, to, result_, &algorithm, workspace,
                               kGemmWorkspaceBytes, stream);
}

void GemmPlan::choose(cublasLtHandle_t handle) { algorithm_ = proposals(handle, 1).front().algo; }

std::string GemmPlan::saved() const {
  std::string text;
  for (std::uint64_t word : algorithm_.data) text += fmt::format("{:016x}", word);
  return text;
}

bool GemmPlan::restore(cublasLtHandle_t handle, std::string_view text) {
  constexpr std::size_t kDigits = 16;
  cublasLtMatmulAlgo_t algorithm{};
  if (text.size() != kDigits * std::size(algorithm.data)) return false;
  for (std::uint64_t& word : algorithm.data) {
    const char* end = text.data() + kDigits;
    std::from_chars_result read = std::from_chars(text.data(), end, word, 16);
    if (read.ec != std::errc() || read.ptr != end) return false;
    text.remove_prefix(kDigits);
  }
  cublasLtMatmulHeuristicResult_t checked{};
  cublasStatus_t status = blas_library().check_algorithm(handle, operation_, first_, second_,
                                                         result_, result_, &algorithm, &checked);
  if (status != CUBLAS_STATUS_SUCCESS || checked.workspaceSize > kGemmWorkspaceBytes) return false;
  algorithm_ = algorithm;
  return true;
}

void GemmPlan::tune(cublasLtHandle_t handle, void* workspace, CudaQueue& queue,
                    const GemmCall& call, void* to) {
  LaunchTimer timer(queue);
  float best = LaunchTimer::kNever;
  for (const auto& proposal : proposals(handle, kProposals)) {
    const auto launch = [&] {
      return start(handle, workspace, queue.stream(), call, to, proposal.algo) ==
             CUBLAS_STATUS_SUCCESS;
    };
    const float time = timer.milliseconds(launch, best);
    if (time >= best) continue;
    best = time;
    algorithm_ = proposal.algo;
  }
  BEV_CHECK(best < LaunchTimer::kNever, ErrorKind::kDevice, "cuBLASLt: no proposed algorithm runs");
}

void GemmPlan::run(cublasLtHandle_t handle, void* workspace, cudaStream_t stream,
                   const GemmCall& call) const {
  check_blas(start(handle, workspace, stream, call, call.c.data, algorithm_), "product");
}

}  // namespace bev
