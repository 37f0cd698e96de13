// cuBLASLt state of a rank: handle, workspace, and the algorithm of each shape, which is cached on
// disk for the next run.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "backend/cuda/gemm/gemm_plan.h"

namespace bev {

class CacheFile;
class CudaQueue;
struct DeviceOptions;
struct GemmArgs;
struct ScaledGemmArgs;
struct Stream;

namespace cuda {
struct LinearGemm;
}

class CudaGemm {
 public:
  // In deterministic mode the first proposal is taken, without autotuning or the cache.
  CudaGemm(int device, const DeviceOptions& options);
  ~CudaGemm();
  CudaGemm(const CudaGemm&) = delete;
  CudaGemm& operator=(const CudaGemm&) = delete;

  void run(CudaQueue& queue, const GemmArgs& args);
  // c = alpha a b^T (+ bias) with rows whose bits do not depend on the other rows (gemm_exact.cpp).
  void run_exact(const Stream& stream, const GemmArgs& args);
  // Returns false if cuBLASLt has no bias epilogue for this GEMM, so that the caller must add it.
  bool run(CudaQueue& queue, const ScaledGemmArgs& args);

 private:
  void run(CudaQueue& queue, const GemmShape& shape, const GemmCall& call);
  GemmPlan& plan_for(CudaQueue& queue, const GemmShape& shape, const GemmCall& call);
  bool find_measured(CudaQueue& queue, const GemmShape& shape, const GemmCall& call,
                     GemmPlan& plan);
  bool measure(CudaQueue& queue, const GemmShape& shape, const GemmCall& call, GemmPlan& plan);
  std::string cache_key(const GemmShape& shape) const;

  // The kernel for an exact GEMM of one shape.
  enum class ExactKernel : std::uint8_t { kReference, kRing, kLibrary };
  struct ExactPlan {
    ExactKernel kernel = ExactKernel::kReference;
    std::unique_ptr<GemmPlan> library;
  };
  static bool worth_measuring(const GemmShape& shape);
  ExactPlan choose_exact(const Stream& stream, const GemmShape& shape,
                         const cuda::LinearGemm& gemm);
  bool ring_is_exact(const Stream& stream, const cuda::LinearGemm& gemm);
  bool measure_exact(const Stream& stream, const GemmShape& shape, const cuda::LinearGemm& gemm,
                     ExactPlan& plan);

  bool measures_;
  cublasLtHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;
  std::string machine_;               // GPU and library versions, part of the cache key
  std::unique_ptr<CacheFile> cache_;  // null: none
  std::map<GemmShape, std::unique_ptr<GemmPlan>> plans_;
  std::map<GemmShape, ExactPlan> exact_plans_;
  std::map<std::pair<Dtype, bool>, bool> exact_rings_;  // by dtype, and whether against wgmma
};

}  // namespace bev
