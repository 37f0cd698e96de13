// The cuBLASLt functions in use, loaded at run time.
#pragma once

#include <cublasLt.h>

#include <string>

namespace bev {

struct BlasLibrary {
  // Throws Error(kConfig) with advice if the library is missing.
  explicit BlasLibrary(const std::string& name);

  decltype(&cublasLtCreate) create;
  decltype(&cublasLtDestroy) destroy;
  decltype(&cublasLtGetVersion) version;
  decltype(&cublasLtGetStatusString) status_text;
  decltype(&cublasLtMatmul) matmul;
  decltype(&cublasLtMatmulAlgoCheck) check_algorithm;
  decltype(&cublasLtMatmulAlgoConfigGetAttribute) algorithm_value;
  decltype(&cublasLtMatmulAlgoGetHeuristic) propose_algorithms;
  decltype(&cublasLtMatmulDescCreate) create_operation;
  decltype(&cublasLtMatmulDescDestroy) destroy_operation;
  decltype(&cublasLtMatmulDescSetAttribute) set_operation;
  decltype(&cublasLtMatmulPreferenceCreate) create_preference;
  decltype(&cublasLtMatmulPreferenceDestroy) destroy_preference;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference;
  decltype(&cublasLtMatrixLayoutCreate) create_layout;
  decltype(&cublasLtMatrixLayoutDestroy) destroy_layout;
};

// The library of this process, of the major version that the program was compiled for.
const BlasLibrary& blas_library();

}  // namespace bev
