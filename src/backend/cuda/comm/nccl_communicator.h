// NCCL communicators, and conversions of our dtypes and reductions to those of NCCL.
#pragma once

#include "backend/cuda/comm/nccl_library.h"
#include "comm/group.h"

namespace bev {

// Throws Error(kDevice) naming what failed.
void check_nccl(int result, const char* what);

int nccl_dtype(Dtype dtype);
int nccl_reduction(Reduction reduction);

// Owns a communicator; construction is collective over its ranks.
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
