// Compute stream of a rank, host waits and CUDA graph capture.
#include "backend/cuda/runtime/queue.h"

#include <algorithm>

#include "backend/cuda/attention/attention_plans.h"
#include "backend/cuda/device.h"
#include "backend/cuda/gemm/gemm_plans.h"
#include "base/error.h"
#include "base/gpu_archs.h"
#include "kernels/device.h"

namespace bev {

void check_cuda(cudaError_t error, const char* what) {
  BEV_CHECK(error == cudaSuccess, ErrorKind::kDevice, "CUDA: ", what, ": ",
            cudaGetErrorString(error));
}

CudaQueue::CudaQueue(int device, const DeviceOptions& options) {
  check_cuda(cudaSetDevice(device), "choose the device");
  check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "make a stream");
  check_cuda(cudaDeviceGetAttribute(&multiprocessors_, cudaDevAttrMultiProcessorCount, device),
             "count multiprocessors");
  arch_ = cuda_arch(device, options.limit_arch);
  int shared = 0;
  check_cuda(cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
             "ask for shared memory");
  shared_memory_ = std::min(static_cast<std::size_t>(shared), block_shared_memory(arch_));
  gemm_ = std::make_unique<CudaGemm>(device, options);
  attention_ = std::make_unique<CudaAttention>();
  attention_->deterministic = options.deterministic;
}

CudaQueue::~CudaQueue() {
  cudaStreamSynchronize(stream_);
  attention_.reset();
  gemm_.reset();
  cudaStreamDestroy(stream_);
}

void CudaQueue::before_wait() {
  ++host_waits_;
  for (DeviceWaitCheck* check : wait_checks_) check->before_wait();
}

void CudaQueue::wait(cudaEvent_t event) {
  before_wait();
  check_cuda(cudaEventSynchronize(event), "wait for the device");
}

void CudaQueue::wait_for_all() {
  before_wait();
  check_cuda(cudaStreamSynchronize(stream_), "wait for the device");
}

void CudaQueue::follow_all() {
  for (SideStreamWork* work : side_stream_work_) work->follow();
}

void CudaQueue::begin_capture() {
  follow_all();
  check_cuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "begin a graph");
  capturing_ = true;
}

cudaGraph_t CudaQueue::end_capture() {
  follow_all();
  capturing_ = false;
  cudaGraph_t graph = nullptr;
  check_cuda(cudaStreamEndCapture(stream_, &graph), "end a graph");
  return graph;
}

void CudaQueue::abandon_capture() {
  capturing_ = false;
  cudaGraph_t unfinished = nullptr;
  cudaStreamEndCapture(stream_, &unfinished);
  if (unfinished != nullptr) cudaGraphDestroy(unfinished);
  cudaGetLastError();  // clears the error of the abandoned capture
}

bool CudaQueue::captures_behind_kernel() const {
  constexpr int kHopper = 90;
  if (!capturing_ || arch_ < kHopper) return false;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaGraphNode_t* nodes = nullptr;
  const cudaGraphEdgeData* edges = nullptr;
  std::size_t count = 0;
  check_cuda(cudaStreamGetCaptureInfo(stream_, &status, nullptr, nullptr, &nodes, &edges, &count),
             "ask what a capture waits for");
  if (count != 1) return false;
  cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
  check_cuda(cudaGraphNodeGetType(nodes[0], &type), "ask what a capture waits for");
  return type == cudaGraphNodeTypeKernel;
}

CudaGemm& CudaQueue::gemm() { return *gemm_; }
CudaAttention& CudaQueue::attention() { return *attention_; }

}  // namespace bev
