// cuBLASLt: its handle, its workspace, and the algorithm chosen for each shape that was met.
#pragma once

#include <cublasLt.h>

#include <cstddef>
#include <map>
#include <string>

#include "kernels/gemm.h"

namespace bev {

class CudaQueue;

class CudaGemm {
 public:
  CudaGemm();
  ~CudaGemm();
  CudaGemm(const CudaGemm&) = delete;
  CudaGemm& operator=(const CudaGemm&) = delete;

  void run(CudaQueue& queue, const GemmArgs& args);

 private:
  struct Plan;
  cublasLtHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;
  std::map<std::string, Plan> plans_;
};

}  // namespace bev
