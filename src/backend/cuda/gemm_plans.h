// cuBLASLt: its handle, its workspace, and the algorithm chosen for each shape that was met, which
// is kept on disk for the next run.
#pragma once

#include <cublasLt.h>

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "kernels/gemm.h"

namespace bev {

class CacheFile;
class CudaQueue;
struct DeviceOptions;

// What an algorithm is chosen for.
struct GemmShape {
  std::int64_t m = 0, n = 0, k = 0;  // c [m, n]
  Dtype in = Dtype::kBf16, out = Dtype::kBf16;
  bool transpose_a = false, transpose_b = false;
  bool adds = false;  // beta is not 0
  bool bias = false;
  std::uint32_t alignment = 16;  // of the matrices' addresses, at most 16
  auto operator<=>(const GemmShape&) const = default;
};

class CudaGemm {
 public:
  // Deterministic: it takes what the library proposes first, and knows of no earlier run.
  CudaGemm(int device, const DeviceOptions& options);
  ~CudaGemm();
  CudaGemm(const CudaGemm&) = delete;
  CudaGemm& operator=(const CudaGemm&) = delete;

  void run(CudaQueue& queue, const GemmArgs& args);

 private:
  class Plan;
  Plan& plan_for(CudaQueue& queue, const GemmShape& shape, const GemmArgs& args);
  bool find_measured(CudaQueue& queue, const GemmShape& shape, const GemmArgs& args, Plan& plan);
  bool measure(CudaQueue& queue, const GemmShape& shape, const GemmArgs& args, Plan& plan);
  std::string cache_key(const GemmShape& shape) const;

  bool measures_;
  cublasLtHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;
  std::string machine_;               // GPU and versions: what an algorithm holds for
  std::unique_ptr<CacheFile> cache_;  // null: none
  std::map<GemmShape, std::unique_ptr<Plan>> plans_;
};

}  // namespace bev
