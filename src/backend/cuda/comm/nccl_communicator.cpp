// NCCL communicators, errors and conversions.
#include "backend/cuda/comm/nccl_communicator.h"

#include <exception>
#include <utility>

#include "base/error.h"

namespace bev {

void check_nccl(int result, const char* what) {
  if (result == 0) return;
  const char* cause = nccl_library().last_error(nullptr);
  // 5 is ncclInvalidUsage, which NCCL reports for several ranks on one GPU.
  const char* cure = result == 5 ? "; ranks of several processes may share a GPU with NCCL 2.30 or "
                                   "newer and NCCL_MULTI_RANK_GPU_ENABLE=1"
                                 : "";
  BEV_FAIL(ErrorKind::kDevice, "NCCL: ", what, ": ", nccl_library().error_string(result), ": ",
           cause != nullptr ? cause : "", cure);
}

int nccl_dtype(Dtype dtype) {
  switch (dtype) {
    case Dtype::kU8:
      return 1;
    case Dtype::kI32:
      return 2;
    case Dtype::kI64:
      return 4;
    case Dtype::kF16:
      return 6;
    case Dtype::kF32:
      return 7;
    case Dtype::kF64:
      return 8;
    case Dtype::kBf16:
      return 9;
  }
  return 1;
}

int nccl_reduction(Reduction reduction) { return reduction == Reduction::kSum ? 0 : 2; }

NcclId make_nccl_id() {
  NcclId id;
  check_nccl(nccl_library().get_unique_id(&id), "make an id");
  return id;
}

NcclCommunicator::NcclCommunicator(const NcclId& id, int size, int rank) {
  check_nccl(nccl_library().comm_init_rank(&comm_, size, id, rank), "make a communicator");
}

// While an exception unwinds, peers may never join pending operations, so the communicator is
// aborted.
NcclCommunicator::~NcclCommunicator() {
  if (comm_ == nullptr) return;
  bool failing = std::uncaught_exceptions() > 0;
  failing ? nccl_library().comm_abort(comm_) : nccl_library().comm_destroy(comm_);
}

NcclCommunicator::NcclCommunicator(NcclCommunicator&& other) noexcept
    : comm_(std::exchange(other.comm_, nullptr)) {}

NcclCommunicator& NcclCommunicator::operator=(NcclCommunicator&& other) noexcept {
  std::swap(comm_, other.comm_);
  return *this;
}

}  // namespace bev
