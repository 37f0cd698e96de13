// A cuBLASLt GEMM of one shape: its descriptors and the algorithm chosen for it.
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
struct GemmArgs;

inline constexpr std::size_t kGemmWorkspaceBytes = std::size_t{32} << 20;
inline constexpr std::uint32_t kGemmAlignment = 16;

// Throws Error(kDevice) naming what failed.
void check_blas(cublasStatus_t status, const char* what);

// Format and scaling of an FP8 operand.
struct ScaledOperand {
  Fp8Format format = Fp8Format::kE4m3;
  ScaleBlock block = ScaleBlock::kTensor;
  auto operator<=>(const ScaledOperand&) const = default;
};

// Key by which algorithms are chosen and cached.
struct GemmShape {
  std::int64_t m = 0, n = 0, k = 0;             // c [m, n]
  std::int64_t a_stride = 0, c_stride = 0;      // row strides; 0: rows are contiguous
  Dtype in = Dtype::kBf16, out = Dtype::kBf16;  // kU8: a and b are scaled
  ScaledOperand a, b;
  bool fast = false;  // fast accumulation of FP8 products
  bool transpose_a = false, transpose_b = false;
  bool adds = false;  // beta is not 0
  bool bias = false;
  std::uint32_t alignment = 16;  // of the addresses of the matrices, at most 16
  auto operator<=>(const GemmShape&) const = default;
};

// Operands and scalars of one call.
struct GemmCall {
  const void *a = nullptr, *b = nullptr, *bias = nullptr;
  const void *a_scales = nullptr, *b_scales = nullptr;
  View c;
  float alpha = 1, beta = 0;
};

GemmShape shape_of(const GemmArgs& args);
GemmCall call_of(const GemmArgs& args);
// Largest power of two, at most 16 (a vectorised load), that divides the addresses of all matrices.
std::uint32_t alignment_of(const GemmCall& call);

class GemmPlan {
 public:
  explicit GemmPlan(const GemmShape& shape);
  ~GemmPlan();
  GemmPlan(const GemmPlan&) = delete;
  GemmPlan& operator=(const GemmPlan&) = delete;

  // Sets the pointers of the descriptor (bias, scales), which differ from call to call.
  void point(const GemmCall& call);
  // Autotunes by timing. Writes to `to`, which may be the c of the call if beta is 0.
  void tune(cublasLtHandle_t handle, void* workspace, CudaQueue& queue, const GemmCall& call,
            void* to);
  // Takes the first algorithm that the heuristic proposes.
  void choose(cublasLtHandle_t handle);
  // The proposed algorithms that do not split K, maybe none.
  std::vector<cublasLtMatmulAlgo_t> unsplit_proposals(cublasLtHandle_t handle) const;
  void take(const cublasLtMatmulAlgo_t& algorithm) { algorithm_ = algorithm; }
  // Restores an algorithm from the text of saved(); returns false if it is not valid here.
  bool restore(cublasLtHandle_t handle, std::string_view text);
  std::string saved() const;
  void run(cublasLtHandle_t handle, void* workspace, cudaStream_t stream,
           const GemmCall& call) const;
  // Runs an algorithm, with the result in `to`.
  cublasStatus_t start(cublasLtHandle_t handle, void* workspace, cudaStream_t stream,
                       const GemmCall& call, void* to, const cublasLtMatmulAlgo_t& algorithm) const;

 private:
  std::vector<cublasLtMatmulHeuristicResult_t> find_proposals(cublasLtHandle_t handle, int most,
                                                              cublasStatus_t& status) const;
  std::vector<cublasLtMatmulHeuristicResult_t> proposals(cublasLtHandle_t handle, int most) const;
  template <class Value>
  void set(cublasLtMatmulDescAttributes_t what, const Value& value);

  GemmShape shape_;
  bool scaled_;
  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t first_ = nullptr, second_ = nullptr, result_ = nullptr;
  cublasLtMatmulAlgo_t algorithm_{};
};

}  // namespace bev
