// Communicators of NCCL, and its words for ours.
#pragma once

#include "backend/cuda/nccl_library.h"
#include "comm/group.h"

namespace bev {

// Error(kDevice) naming what failed.
void check_nccl(int result, const char* what);

int nccl_dtype(Dtype dtype);
int nccl_reduction(Reduction reduction);

// A communicator; made by all its ranks together.
class NcclCommunicator {
 public:
  NcclCommunicator() = default;
  NcclCommunicator(const NcclId& id, int size, int rank);
  ~NcclCommunicator();
  NcclCommunicator(NcclCommunicator&& other) noexcept;
  NcclCommunicator& operator=(NcclCommunicator&& other) noexcept;
  NcclComm get() const { return comm_; }

 private:
  NcclComm comm_ = nullptr;
};
NcclId make_nccl_id();

}  // namespace bev
