// A product of one shape by cuBLASLt: its description and the algorithm chosen for it.
#pragma once

#include <cublasLt.h>

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/quantized.h"
#include "tensor/view.h"

namespace bev {

class CudaQueue;

inline constexpr std::size_t kGemmWorkspaceBytes = std::size_t{32} << 20;
inline constexpr std::uint32_t kGemmAlignment = 16;

// Error(kDevice) naming what failed.
void check_blas(cublasStatus_t status, const char* what);

// How a factor of 8-bit floats is to be read.
struct ScaledFactor {
  Fp8Format format = Fp8Format::kE4m3;
  ScaleBlock block = ScaleBlock::kTensor;
  auto operator<=>(const ScaledFactor&) const = default;
};

// What an algorithm is chosen for.
struct GemmShape {
  std::int64_t m = 0, n = 0, k = 0;             // c [m, n]
  std::int64_t a_stride = 0, c_stride = 0;      // from row to row; 0: as many as columns
  Dtype in = Dtype::kBf16, out = Dtype::kBf16;  // kU8: a and b are scaled
  ScaledFactor a, b;
  bool fast = false;  // sums of scaled factors may lose a few bits
  bool transpose_a = false, transpose_b = false;
  bool adds = false;  // beta is not 0
  bool bias = false;
  std::uint32_t alignment = 16;  // of the matrices' addresses, at most 16
  auto operator<=>(const GemmShape&) const = default;
};

// What a product of a shape works on.
struct GemmCall {
  const void *a = nullptr, *b = nullptr, *bias = nullptr;
  const void *a_scales = nullptr, *b_scales = nullptr;
  View c;
  float alpha = 1, beta = 0;
};

class GemmPlan {
 public:
  explicit GemmPlan(const GemmShape& shape);
  ~GemmPlan();
  GemmPlan(const GemmPlan&) = delete;
  GemmPlan& operator=(const GemmPlan&) = delete;

  // The addresses that calls differ in, besides those of the matrices.
  void point(const GemmCall& call);
  // Chooses by measurement; writes to `to`, which may be the call's c where nothing is added to it.
  void tune(cublasLtHandle_t handle, void* workspace, CudaQueue& queue, const GemmCall& call,
            void* to);
  // The first that the library proposes.
  void choose(cublasLtHandle_t handle);
  // One that was chosen before, as `saved` wrote it; false where it does not serve here.
  bool restore(cublasLtHandle_t handle, std::string_view text);
  std::string saved() const;
  void run(cublasLtHandle_t handle, void* workspace, cudaStream_t stream,
           const GemmCall& call) const;

 private:
  std::vector<cublasLtMatmulHeuristicResult_t> proposals(cublasLtHandle_t handle, int most) const;
  cublasStatus_t start(cublasLtHandle_t handle, void* workspace, cudaStream_t stream,
                       const GemmCall& call, void* to, const cublasLtMatmulAlgo_t& algorithm) const;
  template <class Value>
  void set(cublasLtMatmulDescAttributes_t what, const Value& value);

  GemmShape shape_;
  bool scaled_;
  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t first_ = nullptr, second_ = nullptr, result_ = nullptr;
  cublasLtMatmulAlgo_t algorithm_{};
};

}  // namespace bev
