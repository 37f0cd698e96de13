// Dense and FP8 GEMM through cuBLASLt, with an algorithm chosen per shape.
#include "kernels/gemm.h"

#include <fmt/format.h>

#include <optional>
#include <string>

#include "backend/cuda/gemm/blas_library.h"
#include "backend/cuda/gemm/gemm_plans.h"
#include "backend/cuda/gemm/linear_gemm.h"
#include "backend/cuda/moe/moe_launchers.h"
#include "backend/cuda/runtime/queue.h"
#include "backend/cuda/tables.h"
#include "base/cache_file.h"
#include "base/error.h"
#include "base/file.h"
#include "kernels/device.h"
#include "kernels/elementwise.h"
#include "kernels/quantize.h"

namespace bev {

std::uint32_t alignment_of(const GemmCall& call) {
  auto bits = std::uintptr_t{kGemmAlignment} | reinterpret_cast<std::uintptr_t>(call.a) |
              reinterpret_cast<std::uintptr_t>(call.b) |
              reinterpret_cast<std::uintptr_t>(call.c.data);
  return static_cast<std::uint32_t>(bits & -bits);
}

namespace {

// cuBLASLt has fast kernels only if row lengths are a multiple of 16 bytes, whatever the stride. So
// for a long row of another length the last columns are a GEMM of their own.
constexpr std::int64_t kWholeColumns = 64, kLeastCut = 16 * kWholeColumns;

bool ends_within_word(std::int64_t columns, std::int64_t stride) {
  constexpr std::int64_t kWord = 8;
  return columns > kLeastCut && columns % kWord != 0 && stride > 0 && stride % kWord == 0;
}

// The extent to split, along rows of c or a; null for none. Rows of b are not padded, so an extent
// that runs along them would gain nothing.
std::int64_t GemmShape::*cut_extent(const GemmShape& shape) {
  if (shape.transpose_b && ends_within_word(shape.n, shape.c_stride)) return &GemmShape::n;
  if (shape.transpose_a && ends_within_word(shape.m, shape.a_stride)) return &GemmShape::m;
  const bool terms = !shape.transpose_a && !shape.transpose_b;
  return terms && ends_within_word(shape.k, shape.a_stride) ? &GemmShape::k : nullptr;
}

// Operands of the GEMM over the remaining part of `extent`, after its first `count`.
GemmCall remainder_call(const GemmShape& shape, std::int64_t GemmShape::*extent, std::int64_t count,
                        GemmCall call) {
  auto move = [&](const void*& data, std::int64_t elements) {
    if (data != nullptr) data = static_cast<const char*>(data) + elements * size_of(shape.in);
  };
  const bool over_rows = extent == &GemmShape::m, over_columns = extent == &GemmShape::n;
  if (over_columns) move(call.bias, count);
  if (!over_columns) move(call.a, count);
  if (!over_rows) move(call.b, count * (over_columns ? shape.k : shape.n));
  const std::int64_t row = shape.c_stride > 0 ? shape.c_stride : shape.n;
  const std::int64_t moved = over_columns ? count : over_rows ? count * row : 0;
  call.c.data = static_cast<char*>(call.c.data) + moved * size_of(shape.out);
  return call;
}

}  // namespace

CudaGemm::CudaGemm(int device, const DeviceOptions& options) : measures_(!options.deterministic) {
  check_blas(blas_library().create(&handle_), "start");
  check_cuda(cudaMalloc(&workspace_, kGemmWorkspaceBytes), "allocate the products' workspace");
  if (options.deterministic || options.cache_folder.empty()) return;
  cudaDeviceProp properties{};
  int driver = 0;
  check_cuda(cudaGetDeviceProperties(&properties, device), "ask for the device's name");
  check_cuda(cudaDriverGetVersion(&driver), "ask for the driver's version");
  machine_ = fmt::format("{}, driver {}, cuBLASLt {}, workspace {}", properties.name, driver,
                         blas_library().version(), kGemmWorkspaceBytes);
  cache_ = std::make_unique<CacheFile>(join_path(options.cache_folder, "gemm_algorithms"));
}

CudaGemm::~CudaGemm() {
  exact_plans_.clear();
  plans_.clear();
  cudaFree(workspace_);
  blas_library().destroy(handle_);
}

std::string CudaGemm::cache_key(const GemmShape& shape) const {
  auto named = [&](const ScaledOperand& factor) {
    return fmt::format("{} by {}", factor.format == Fp8Format::kE4m3 ? "e4m3" : "e5m2",
                       static_cast<int>(factor.block));
  };
  std::string in(name_of(shape.in));
  if (shape.in == Dtype::kU8) {
    in = fmt::format("{}, {}{}", named(shape.a), named(shape.b), shape.fast ? ", fast" : "");
  }
  std::string strides;
  if (shape.a_stride > 0) strides += fmt::format(", a in rows of {}", shape.a_stride);
  if (shape.c_stride > 0) strides += fmt::format(", c in rows of {}", shape.c_stride);
  return fmt::format("{}: {} x {} x {} {} to {}{}{}{}{}{}, aligned {}", machine_, shape.m, shape.n,
                     shape.k, in, name_of(shape.out), shape.transpose_a ? ", a transposed" : "",
                     shape.transpose_b ? ", b transposed" : "", shape.adds ? ", added" : "",
                     shape.bias ? ", bias" : "", strides, shape.alignment);
}

// Returns false if there is no memory to measure in: a GEMM with beta is timed into a scratch
// result.
bool CudaGemm::measure(CudaQueue& queue, const GemmShape& shape, const GemmCall& call,
                       GemmPlan& plan) {
  void* to = call.c.data;
  if (shape.adds && cudaMalloc(&to, call.c.bytes()) != cudaSuccess) {
    cudaGetLastError();  // running out of memory is not an error here
    return false;
  }
  plan.tune(handle_, workspace_, queue, call, to);
  if (shape.adds) check_cuda(cudaFree(to), "free memory");
  return true;
}

GemmPlan& CudaGemm::plan_for(CudaQueue& queue, const GemmShape& shape, const GemmCall& call) {
  std::unique_ptr<GemmPlan>& plan = plans_[shape];
  if (plan) {
    plan->point(call);
    return *plan;
  }
  auto made = std::make_unique<GemmPlan>(shape);
  made->point(call);
  if (!measures_ || !find_measured(queue, shape, call, *made)) made->choose(handle_);
  plan = std::move(made);
  return *plan;
}

// Takes the algorithm from the cache of an earlier run, or measures now. Returns false if neither
// is possible.
bool CudaGemm::find_measured(CudaQueue& queue, const GemmShape& shape, const GemmCall& call,
                             GemmPlan& plan) {
  std::string key = cache_ ? cache_key(shape) : "";
  std::optional<std::string> known = cache_ ? cache_->find(key) : std::nullopt;
  if (known && plan.restore(handle_, *known)) return true;
  if (queue.capturing() || !measure(queue, shape, call, plan)) return false;
  if (cache_) cache_->put(key, plan.saved());
  return true;
}

GemmShape shape_of(const GemmArgs& args) {
  GemmShape shape;
  std::int64_t a_columns = args.a_columns > 0 ? args.a_columns : args.a.shape[1];
  shape.m = args.c.shape[0];
  shape.n = args.c_columns > 0 ? args.c_columns : args.c.shape[1];
  shape.k = args.transpose_a ? args.a.shape[0] : a_columns;
  if (a_columns < args.a.shape[1]) shape.a_stride = args.a.shape[1];
  if (shape.n < args.c.shape[1]) shape.c_stride = args.c.shape[1];
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
  return shape;
}

GemmCall call_of(const GemmArgs& args) {
  return {args.a.data,
          args.b.data,
          args.bias.data,
          nullptr,
          nullptr,
          args.c,
          static_cast<float>(args.alpha),
          static_cast<float>(args.beta)};
}

void CudaGemm::run(CudaQueue& queue, const GemmArgs& args) {
  run(queue, shape_of(args), call_of(args));
}

bool CudaGemm::run(CudaQueue& queue, const ScaledGemmArgs& args) {
  GemmShape shape;
  shape.m = args.c.shape[0];
  shape.n = args.c.shape[1];
  shape.k = args.a.payload.shape[1];
  BEV_CHECK(args.b.payload.shape[1] == shape.k, ErrorKind::kInternal, "product of ",
            args.a.payload.shape, " and ", args.b.payload.shape);
  shape.in = Dtype::kU8;
  shape.out = args.c.dtype;
  shape.transpose_b = true;
  shape.a = {args.a.format, args.a.block};
  shape.b = {args.b.format, args.b.block};
  bool blocks = args.a.block != ScaleBlock::kTensor;
  constexpr int kAda = 89, kHopper = 90;
  BEV_CHECK(blocks ? queue.arch() == kHopper : queue.arch() >= kAda, ErrorKind::kDevice,
            "CUDA: GEMMs of 8-bit floats need compute capability ",
            blocks ? "9.0 for a scale per block" : "8.9", ", not ", queue.arch() / 10.0);
  shape.fast = args.fast && !blocks;
  shape.adds = args.beta != 0;
  shape.bias = !args.bias.empty() && !blocks && size_of(shape.out) == 2;
  run(queue, shape,
      {args.a.payload.data, args.b.payload.data, args.bias.data, args.a.scales.data,
       args.b.scales.data, args.c, 1, static_cast<float>(args.beta)});
  return shape.bias || args.bias.empty();
}

// With an extent split, the remainder runs first: with K split, the main part then accumulates onto
// it before rounding.
void CudaGemm::run(CudaQueue& queue, const GemmShape& asked, const GemmCall& call) {
  GemmShape shape = asked;
  if (std::int64_t GemmShape::*extent = cut_extent(asked)) {
    const std::int64_t whole = asked.*extent / kWholeColumns * kWholeColumns;
    shape.*extent = asked.*extent - whole;
    run(queue, shape, remainder_call(asked, extent, whole, call));
    shape.*extent = whole;
    GemmCall first = call;
    if (extent == &GemmShape::k) {
      shape.adds = true;
      shape.bias = false;
      first.beta = 1;
    }
    return run(queue, shape, first);
  }
  shape.alignment = alignment_of(call);
  plan_for(queue, shape, call).run(handle_, workspace_, queue.stream(), call);
}

namespace {

// c = beta c, if there is nothing to add up; returns false if there is.
bool is_empty_sum(const Stream& stream, const GemmArgs& args) {
  if (args.c.numel() == 0) return true;
  if ((args.transpose_a ? args.a.shape[0] : args.a.shape[1]) != 0) return false;
  BEV_CHECK(args.bias.empty(), ErrorKind::kInternal, "a bias on an empty product");
  if (args.beta != 1) cuda_kernels().elementwise.axpby(stream, 0, args.c, args.beta, args.c);
  return true;
}

// Whether the kernel for few rows is faster than cuBLASLt (H200, bench/skinny_gemm): up to 8 rows
// always, up to 16 unless the weight is large.
bool prefers_ring(const cuda::LinearGemm& gemm) {
  constexpr std::int64_t kAlways = 8, kMost = 16, kMostWeights = std::int64_t{1} << 24;
  const bool few = gemm.m <= kAlways || (gemm.m <= kMost && gemm.n * gemm.k <= kMostWeights);
  return few && cuda::gemm_ring_supports(gemm);
}

void gemm(const Stream& stream, const GemmArgs& args) {
  if (is_empty_sum(stream, args)) return;
  if (cuda::is_linear(args)) {
    const cuda::LinearGemm linear = cuda::linear_gemm(args);
    if (prefers_ring(linear)) return cuda::gemm_ring(stream, linear, false);
  }
  queue_of(stream).gemm().run(queue_of(stream), args);
}

// Forwards only: gradients are sums over all rows anyway. What adds to c without transposes is the
// biases of experts, which are few.
void gemm_exact(const Stream& stream, const GemmArgs& args) {
  if (is_empty_sum(stream, args)) return;
  if (cuda::is_linear(args)) return queue_of(stream).gemm().run_exact(stream, args);
  const bool adds_terms = !args.transpose_a && !args.transpose_b && args.beta != 0;
  constexpr std::int64_t kMostTerms = 1024;
  if (adds_terms && args.b.shape[0] <= kMostTerms) return cuda::gemm_plain(stream, args);
  queue_of(stream).gemm().run(queue_of(stream), args);
}

using RunGemm = void (*)(const Stream&, const GemmArgs&);

void scaled_gemm(const Stream& stream, const ScaledGemmArgs& args, RunGemm run_emulated) {
  if (is_emulated(args.a.block)) {
    return run_emulated(stream, {.a = args.a.payload,
                                 .b = args.b.payload,
                                 .c = args.c,
                                 .transpose_b = true,
                                 .beta = args.beta,
                                 .bias = args.bias});
  }
  if (args.c.numel() == 0) return;
  if (args.a.payload.shape[1] == 0) {
    BEV_CHECK(args.bias.empty(), ErrorKind::kInternal, "a bias on an empty product");
    if (args.beta != 1) cuda_kernels().elementwise.axpby(stream, 0, args.c, args.beta, args.c);
    return;
  }
  CudaQueue& queue = queue_of(stream);
  if (!queue.gemm().run(queue, args)) {
    cuda_kernels().elementwise.add_rows(stream, args.c, args.bias);
  }
}

}  // namespace

GemmKernels cuda_table(Family<GemmKernels>) {
  return {.gemm = gemm, .packed_bytes = [](const GemmArgs&) { return std::size_t{0}; }};
}

GemmKernels cuda_exact_gemm() {
  GemmKernels table = cuda_table(Family<GemmKernels>());
  table.gemm = gemm_exact;
  return table;
}

void cuda_scaled_gemm(const Stream& stream, const ScaledGemmArgs& args) {
  scaled_gemm(stream, args, gemm);
}

// With scales per run a forward is the GEMM of a single expert, whose kernel does not depend on the
// number of rows.
void cuda_scaled_gemm_exact(const Stream& stream, const ScaledGemmArgs& args) {
  const bool by_run = args.a.block == ScaleBlock::kRun && args.b.block == ScaleBlock::kSquare;
  if (!by_run || args.beta != 0) return scaled_gemm(stream, args, gemm_exact);
  BEV_CHECK(args.c.shape[1] % kScaleBlock == 0 && args.a.payload.shape[1] % kScaleBlock == 0,
            ErrorKind::kConfig, "CUDA: an exact GEMM of 8-bit floats with a weight ",
            args.b.payload.shape, ", whose sizes are not multiples of ", kScaleBlock,
            "; leave the layer in the model's precision");
  cuda_grouped_scaled(
      stream,
      {.a = args.a, .b = args.b, .c = args.c, .bias = args.bias, .offsets = nullptr, .experts = 1});
}

}  // namespace bev
