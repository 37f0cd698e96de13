// Loading of cuBLASLt at run time.
#include "backend/cuda/gemm/blas_library.h"

#include "backend/cuda/runtime/shared_library.h"
#include "base/error.h"

namespace bev {

BlasLibrary::BlasLibrary(const std::string& name) {
  SharedLibrary library(name);
  BEV_CHECK(library.loaded(), ErrorKind::kConfig, "--device cuda: ", library.problem(),
            "; --device cpu needs none of it");
  auto take = [&](auto*& function, const char* symbol) {
    BEV_CHECK(library.find(function, symbol), ErrorKind::kConfig, "--device cuda: ", name,
              " has no ", symbol, "; use the one of CUDA ", CUBLAS_VER_MAJOR);
  };
  take(create, "cublasLtCreate");
  take(destroy, "cublasLtDestroy");
  take(version, "cublasLtGetVersion");
  take(status_text, "cublasLtGetStatusString");
  take(matmul, "cublasLtMatmul");
  take(check_algorithm, "cublasLtMatmulAlgoCheck");
  take(algorithm_value, "cublasLtMatmulAlgoConfigGetAttribute");
  take(propose_algorithms, "cublasLtMatmulAlgoGetHeuristic");
  take(create_operation, "cublasLtMatmulDescCreate");
  take(destroy_operation, "cublasLtMatmulDescDestroy");
  take(set_operation, "cublasLtMatmulDescSetAttribute");
  take(create_preference, "cublasLtMatmulPreferenceCreate");
  take(destroy_preference, "cublasLtMatmulPreferenceDestroy");
  take(set_preference, "cublasLtMatmulPreferenceSetAttribute");
  take(create_layout, "cublasLtMatrixLayoutCreate");
  take(destroy_layout, "cublasLtMatrixLayoutDestroy");
}

const BlasLibrary& blas_library() {
  static const BlasLibrary library(concat("libcublasLt.so.", CUBLAS_VER_MAJOR));
  return library;
}

}  // namespace bev
