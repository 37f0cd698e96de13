// cuBLASLt: its handle, its workspace, and the algorithm chosen for each shape that was met.
#pragma once

#include <cublasLt.h>

#include <compare>
#include <cstdint>
#include <map>
#include <memory>

#include "kernels/gemm.h"

namespace bev {

class CudaQueue;

// What an algorithm is chosen for.
struct GemmShape {
  std::int64_t m = 0, n = 0, k = 0;  // c [m, n]
  Dtype in = Dtype::kBf16, out = Dtype::kBf16;
  bool transpose_a = false, transpose_b = false;
  bool adds = false;  // beta is not 0
  bool bias = false;
  auto operator<=>(const GemmShape&) const = default;
};

class CudaGemm {
 public:
  // Without measuring it takes what the library proposes first.
  explicit CudaGemm(bool measures);
  ~CudaGemm();
  CudaGemm(const CudaGemm&) = delete;
  CudaGemm& operator=(const CudaGemm&) = delete;

  void run(CudaQueue& queue, const GemmArgs& args);

 private:
  class Plan;
  Plan& plan_for(CudaQueue& queue, const GemmShape& shape, const GemmArgs& args);

  bool measures_;
  cublasLtHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;
  std::map<GemmShape, std::unique_ptr<Plan>> plans_;
};

}  // namespace bev
