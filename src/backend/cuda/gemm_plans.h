// cuBLASLt: its handle, its workspace, and the algorithm chosen for each shape that was met, which
// is kept on disk for the next run.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "backend/cuda/gemm_plan.h"

namespace bev {

class CacheFile;
class CudaQueue;
struct DeviceOptions;
struct GemmArgs;
struct ScaledProductArgs;

class CudaGemm {
 public:
  // Deterministic: it takes what the library proposes first, and knows of no earlier run.
  CudaGemm(int device, const DeviceOptions& options);
  ~CudaGemm();
  CudaGemm(const CudaGemm&) = delete;
  CudaGemm& operator=(const CudaGemm&) = delete;

  void run(CudaQueue& queue, const GemmArgs& args);
  // Without the bias where the library adds none to such products: false then.
  bool run(CudaQueue& queue, const ScaledProductArgs& args);

 private:
  void run(CudaQueue& queue, const GemmShape& shape, const GemmCall& call);
  GemmPlan& plan_for(CudaQueue& queue, const GemmShape& shape, const GemmCall& call);
  bool find_measured(CudaQueue& queue, const GemmShape& shape, const GemmCall& call,
                     GemmPlan& plan);
  bool measure(CudaQueue& queue, const GemmShape& shape, const GemmCall& call, GemmPlan& plan);
  std::string cache_key(const GemmShape& shape) const;

  bool measures_;
  cublasLtHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;
  std::string machine_;               // GPU and versions: what an algorithm holds for
  std::unique_ptr<CacheFile> cache_;  // null: none
  std::map<GemmShape, std::unique_ptr<GemmPlan>> plans_;
};

}  // namespace bev
