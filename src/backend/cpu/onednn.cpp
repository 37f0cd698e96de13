// Single-threaded f32 GEMM through oneDNN.
#include "backend/cpu/onednn.h"

#include <dnnl.h>
#include <omp.h>

namespace bev::cpu {

namespace {
// oneDNN relies on the CPUID description of the AMX tiles, which some virtual machines leave empty,
// and crashes there. f32 GEMMs need no AMX. The cap must be set before any other oneDNN call.
void cap_instructions() {
  static const bool capped = [] {
    dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx512_core_bf16);
    return true;
  }();
  static_cast<void>(capped);
}

// The OpenMP thread count is a setting of the calling thread.
class SingleThread {
 public:
  SingleThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~SingleThread() { omp_set_num_threads(before_); }
  SingleThread(const SingleThread&) = delete;
  SingleThread& operator=(const SingleThread&) = delete;

 private:
  int before_;
};
}  // namespace

bool onednn_gemm(const GemmDims& dims, float alpha, const float* a, const float* b, float beta,
                 float* c) {
  cap_instructions();
  SingleThread single;
  return dnnl_sgemm(dims.transpose_a ? 'T' : 'N', dims.transpose_b ? 'T' : 'N', dims.m, dims.n,
                    dims.k, alpha, a, dims.lda, b, dims.ldb, beta, c, dims.ldc) == dnnl_success;
}

}  // namespace bev::cpu
