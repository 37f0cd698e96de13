#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "backend/cuda/blas_library.h"
#include "backend/cuda/gemm_plans.h"
#include "backend/cuda/queue.h"
#include "backend/cuda/tables.h"
#include "base/cache_file.h"
#include "base/error.h"
#include "base/file.h"
#include "kernels/device.h"

namespace bev {

namespace {

constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;
constexpr std::uint32_t kFullAlignment = 16;

void check_blas(cublasStatus_t status, const char* what) {
  BEV_CHECK(status == CUBLAS_STATUS_SUCCESS, ErrorKind::kDevice, "cuBLASLt: ", what, ": ",
            blas_library().status_text(status));
}

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

cublasLtMatrixLayout_t make_layout(Dtype dtype, std::int64_t rows, std::int64_t columns) {
  cublasLtMatrixLayout_t layout = nullptr;
  check_blas(
      blas_library().create_layout(&layout, data_type(dtype), static_cast<std::uint64_t>(rows),
                                   static_cast<std::uint64_t>(columns), rows),
      "describe a matrix");
  return layout;
}

// The power of two that all matrices begin at a multiple of, up to the widest load.
std::uint32_t alignment_of(const GemmArgs& args) {
  auto bits = std::uintptr_t{kFullAlignment} | reinterpret_cast<std::uintptr_t>(args.a.data) |
              reinterpret_cast<std::uintptr_t>(args.b.data) |
              reinterpret_cast<std::uintptr_t>(args.c.data);
  return static_cast<std::uint32_t>(bits & -bits);
}

class Event {
 public:
  Event() { check_cuda(cudaEventCreate(&event_), "make an event"); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(cudaStream_t stream) { check_cuda(cudaEventRecord(event_, stream), "record"); }
  float milliseconds_since(CudaQueue& queue, const Event& begin) {
    float time = 0;
    queue.wait(event_);
    check_cuda(cudaEventElapsedTime(&time, begin.event_, event_), "read a time");
    return time;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace

class CudaGemm::Plan {
 public:
  explicit Plan(const GemmShape& shape);
  ~Plan();
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  // Chooses by measurement; writes to `to`, which may be args' c where nothing is added to it.
  void tune(cublasLtHandle_t handle, void* workspace, CudaQueue& queue, const GemmArgs& args,
            void* to);
  // The first that the library proposes.
  void choose(cublasLtHandle_t handle);
  // One that was chosen before, as `saved` wrote it; false where it does not serve here.
  bool restore(cublasLtHandle_t handle, std::string_view text);
  std::string saved() const;
  void run(cublasLtHandle_t handle, void* workspace, cudaStream_t stream,
           const GemmArgs& args) const {
    check_blas(start(handle, workspace, stream, args, args.c.data, algorithm_), "product");
  }

 private:
  std::vector<cublasLtMatmulHeuristicResult_t> proposals(cublasLtHandle_t handle, int most) const;
  cublasStatus_t start(cublasLtHandle_t handle, void* workspace, cudaStream_t stream,
                       const GemmArgs& args, void* to, const cublasLtMatmulAlgo_t& algorithm) const;

  bool bias_;
  std::uint32_t alignment_;
  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t first_ = nullptr, second_ = nullptr, result_ = nullptr;
  cublasLtMatmulAlgo_t algorithm_{};
};

CudaGemm::Plan::Plan(const GemmShape& shape) : bias_(shape.bias), alignment_(shape.alignment) {
  check_blas(blas_library().create_operation(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F),
             "describe a product");
  auto set = [&](cublasLtMatmulDescAttributes_t what, const auto& value) {
    check_blas(blas_library().set_operation(operation_, what, &value, sizeof(value)),
               "describe a product");
  };
  set(CUBLASLT_MATMUL_DESC_TRANSA, shape.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(CUBLASLT_MATMUL_DESC_TRANSB, shape.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (shape.bias) {
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, data_type(shape.in));
  }
  first_ = shape.transpose_b ? make_layout(shape.in, shape.k, shape.n)
                             : make_layout(shape.in, shape.n, shape.k);
  second_ = shape.transpose_a ? make_layout(shape.in, shape.m, shape.k)
                              : make_layout(shape.in, shape.k, shape.m);
  result_ = make_layout(shape.out, shape.n, shape.m);
}

CudaGemm::Plan::~Plan() {
  blas_library().destroy_layout(result_);
  blas_library().destroy_layout(second_);
  blas_library().destroy_layout(first_);
  blas_library().destroy_operation(operation_);
}

std::vector<cublasLtMatmulHeuristicResult_t> CudaGemm::Plan::proposals(cublasLtHandle_t handle,
                                                                       int most) const {
  cublasLtMatmulPreference_t preference = nullptr;
  check_blas(blas_library().create_preference(&preference), "prefer");
  auto prefer = [&](cublasLtMatmulPreferenceAttributes_t what, const auto& value) {
    check_blas(blas_library().set_preference(preference, what, &value, sizeof(value)), "prefer");
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
  // The library counts on full alignment unless told of less.
  for (auto what :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    if (alignment_ < kFullAlignment) prefer(what, alignment_);
  }
  std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<std::size_t>(most));
  int count = 0;
  cublasStatus_t status =
      blas_library().propose_algorithms(handle, operation_, first_, second_, result_, result_,
                                        preference, most, found.data(), &count);
  blas_library().destroy_preference(preference);
  check_blas(status, "find an algorithm");
  BEV_CHECK(count > 0, ErrorKind::kDevice, "cuBLASLt: no algorithm for a product");
  found.resize(static_cast<std::size_t>(count));
  return found;
}

cublasStatus_t CudaGemm::Plan::start(cublasLtHandle_t handle, void* workspace, cudaStream_t stream,
                                     const GemmArgs& args, void* to,
                                     const cublasLtMatmulAlgo_t& algorithm) const {
  if (bias_) {
    check_blas(blas_library().set_operation(operation_, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                            &args.bias.data, sizeof(args.bias.data)),
               "set the bias");
  }
  auto alpha = static_cast<float>(args.alpha), beta = static_cast<float>(args.beta);
  return blas_library().matmul(handle, operation_, &alpha, args.b.data, first_, args.a.data,
                               second_, &beta, args.c.data, result_, to, result_, &algorithm,
                               workspace, kWorkspaceBytes, stream);
}

void CudaGemm::Plan::choose(cublasLtHandle_t handle) {
  algorithm_ = proposals(handle, 1).front().algo;
}

std::string CudaGemm::Plan::saved() const {
  std::string text;
  for (std::uint64_t word : algorithm_.data) text += fmt::format("{:016x}", word);
  return text;
}

bool CudaGemm::Plan::restore(cublasLtHandle_t handle, std::string_view text) {
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
  if (status != CUBLAS_STATUS_SUCCESS || checked.workspaceSize > kWorkspaceBytes) return false;
  algorithm_ = algorithm;
  return true;
}

void CudaGemm::Plan::tune(cublasLtHandle_t handle, void* workspace, CudaQueue& queue,
                          const GemmArgs& args, void* to) {
  constexpr int kProposals = 32, kRounds = 4;
  Event begin, end;
  float best = std::numeric_limits<float>::infinity();
  for (const auto& proposal : proposals(handle, kProposals)) {
    float time = std::numeric_limits<float>::infinity();
    for (int round = 0; round < kRounds; ++round) {
      begin.record(queue.stream());
      if (start(handle, workspace, queue.stream(), args, to, proposal.algo) !=
          CUBLAS_STATUS_SUCCESS)
        break;
      end.record(queue.stream());
      time = std::min(time, end.milliseconds_since(queue, begin));
      // The first round may have loaded the kernel; after the second a slow one has shown itself.
      if (round > 0 && time > 1.1F * best) break;
    }
    if (time >= best) continue;
    best = time;
    algorithm_ = proposal.algo;
  }
  BEV_CHECK(best < std::numeric_limits<float>::infinity(), ErrorKind::kDevice,
            "cuBLASLt: no proposed algorithm runs");
}

CudaGemm::CudaGemm(int device, const DeviceOptions& options) : measures_(!options.deterministic) {
  check_blas(blas_library().create(&handle_), "start");
  check_cuda(cudaMalloc(&workspace_, kWorkspaceBytes), "allocate the products' workspace");
  if (options.deterministic || options.cache_folder.empty()) return;
  cudaDeviceProp properties{};
  int driver = 0;
  check_cuda(cudaGetDeviceProperties(&properties, device), "ask for the device's name");
  check_cuda(cudaDriverGetVersion(&driver), "ask for the driver's version");
  machine_ = fmt::format("{}, driver {}, cuBLASLt {}, workspace {}", properties.name, driver,
                         blas_library().version(), kWorkspaceBytes);
  cache_ = std::make_unique<CacheFile>(join_path(options.cache_folder, "gemm_algorithms"));
}

CudaGemm::~CudaGemm() {
  plans_.clear();
  cudaFree(workspace_);
  blas_library().destroy(handle_);
}

std::string CudaGemm::cache_key(const GemmShape& shape) const {
  return fmt::format("{}: {} x {} x {} {} to {}{}{}{}{}, aligned {}", machine_, shape.m, shape.n,
                     shape.k, name_of(shape.in), name_of(shape.out),
                     shape.transpose_a ? ", a transposed" : "",
                     shape.transpose_b ? ", b transposed" : "", shape.adds ? ", added" : "",
                     shape.bias ? ", bias" : "", shape.alignment);
}

// False where there is no memory to measure in: what adds to c is timed into other memory.
bool CudaGemm::measure(CudaQueue& queue, const GemmShape& shape, const GemmArgs& args, Plan& plan) {
  void* to = args.c.data;
  if (shape.adds && cudaMalloc(&to, args.c.bytes()) != cudaSuccess) {
    cudaGetLastError();  // that there was no memory is no error here
    return false;
  }
  plan.tune(handle_, workspace_, queue, args, to);
  if (shape.adds) check_cuda(cudaFree(to), "free memory");
  return true;
}

CudaGemm::Plan& CudaGemm::plan_for(CudaQueue& queue, const GemmShape& shape, const GemmArgs& args) {
  std::unique_ptr<Plan>& plan = plans_[shape];
  if (plan) return *plan;
  auto made = std::make_unique<Plan>(shape);
  if (!measures_ || !find_measured(queue, shape, args, *made)) made->choose(handle_);
  plan = std::move(made);
  return *plan;
}

// As an earlier run measured it, or by measuring now. False where that cannot be.
bool CudaGemm::find_measured(CudaQueue& queue, const GemmShape& shape, const GemmArgs& args,
                             Plan& plan) {
  std::string key = cache_ ? cache_key(shape) : "";
  std::optional<std::string> known = cache_ ? cache_->find(key) : std::nullopt;
  if (known && plan.restore(handle_, *known)) return true;
  if (queue.recording() || !measure(queue, shape, args, plan)) return false;
  if (cache_) cache_->put(key, plan.saved());
  return true;
}

void CudaGemm::run(CudaQueue& queue, const GemmArgs& args) {
  GemmShape shape;
  shape.m = args.c.shape[0];
  shape.n = args.c.shape[1];
  shape.k = args.transpose_a ? args.a.shape[0] : args.a.shape[1];
  std::int64_t other = args.transpose_b ? args.b.shape[1] : args.b.shape[0];
  BEV_CHECK(other == shape.k && args.a.dtype == args.b.dtype, ErrorKind::kInternal, "product of ",
            args.a.shape, " ", name_of(args.a.dtype), " and ", args.b.shape, " ",
            name_of(args.b.dtype));
  shape.in = args.a.dtype;
  shape.out = args.c.dtype;
  shape.transpose_a = args.transpose_a;
  shape.transpose_b = args.transpose_b;
  shape.adds = args.beta != 0;
  shape.bias = !args.bias.empty();
  shape.alignment = alignment_of(args);
  plan_for(queue, shape, args).run(handle_, workspace_, queue.stream(), args);
}

namespace {

void gemm(const Stream& stream, const GemmArgs& args) {
  if (args.c.numel() == 0) return;
  bool empty_sum = (args.transpose_a ? args.a.shape[0] : args.a.shape[1]) == 0;
  if (empty_sum) {
    BEV_CHECK(args.bias.empty(), ErrorKind::kInternal, "a bias on an empty product");
    if (args.beta != 1) {
      cuda_elementwise_kernels().axpby(stream, 0, args.c, args.beta, args.c);
    }
    return;
  }
  queue_of(stream).gemm().run(queue_of(stream), args);
}

}  // namespace

GemmKernels cuda_gemm_kernels() { return {.gemm = gemm}; }

}  // namespace bev
