#include "backend/cuda/queue.h"

#include "backend/cuda/attention_plans.h"
#include "backend/cuda/gemm_plans.h"
#include "base/error.h"

namespace bev {

void check_cuda(cudaError_t error, const char* what) {
  BEV_CHECK(error == cudaSuccess, ErrorKind::kDevice, "CUDA: ", what, ": ",
            cudaGetErrorString(error));
}

CudaQueue::CudaQueue(int device, bool deterministic) {
  check_cuda(cudaSetDevice(device), "choose the device");
  check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "make a stream");
  check_cuda(cudaDeviceGetAttribute(&multiprocessors_, cudaDevAttrMultiProcessorCount, device),
             "count multiprocessors");
  gemm_ = std::make_unique<CudaGemm>(!deterministic);
  attention_ = std::make_unique<CudaAttention>();
  attention_->deterministic = deterministic;
}

CudaQueue::~CudaQueue() {
  cudaStreamSynchronize(stream_);
  attention_.reset();
  gemm_.reset();
  cudaFree(scratch_);
  cudaStreamDestroy(stream_);
}

void CudaQueue::wait() {
  for (DeviceWaitCheck* check : wait_checks_) check->before_wait();
  check_cuda(cudaStreamSynchronize(stream_), "wait for the device");
}

void* CudaQueue::scratch(std::size_t bytes) {
  if (bytes > scratch_bytes_) {
    wait();
    check_cuda(cudaFree(scratch_), "free the scratch memory");
    scratch_ = nullptr;
    check_cuda(cudaMalloc(&scratch_, bytes), "allocate scratch memory");
    scratch_bytes_ = bytes;
  }
  return scratch_;
}

CudaGemm& CudaQueue::gemm() { return *gemm_; }
CudaAttention& CudaQueue::attention() { return *attention_; }

}  // namespace bev
