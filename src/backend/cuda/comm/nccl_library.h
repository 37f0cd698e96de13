// NCCL, loaded at its first use: the program is built and starts without it. Declares the part of
// its C interface that is used, which is unchanged since version 2.10.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

namespace bev {

using NcclComm = struct ncclComm*;
struct NcclId {
  char bytes[128];
};

// Each function returns 0 (ncclSuccess) on success.
struct NcclLibrary {
  int (*get_version)(int* version);
  int (*get_unique_id)(NcclId* id);
  int (*comm_init_rank)(NcclComm* comm, int size, NcclId id, int rank);
  int (*comm_destroy)(NcclComm comm);
  int (*comm_abort)(NcclComm comm);
  int (*group_start)();
  int (*group_end)();
  int (*all_reduce)(const void* in, void* out, std::size_t count, int dtype, int reduction,
                    NcclComm comm, cudaStream_t stream);
  int (*reduce)(const void* in, void* out, std::size_t count, int dtype, int reduction, int root,
                NcclComm comm, cudaStream_t stream);
  int (*broadcast)(const void* in, void* out, std::size_t count, int dtype, int root, NcclComm comm,
                   cudaStream_t stream);
  int (*all_gather)(const void* in, void* out, std::size_t count, int dtype, NcclComm comm,
                    cudaStream_t stream);
  int (*reduce_scatter)(const void* in, void* out, std::size_t count, int dtype, int reduction,
                        NcclComm comm, cudaStream_t stream);
  int (*send)(const void* in, std::size_t count, int dtype, int to, NcclComm comm,
              cudaStream_t stream);
  int (*receive)(void* out, std::size_t count, int dtype, int from, NcclComm comm,
                 cudaStream_t stream);
  const char* (*error_string)(int result);
  const char* (*last_error)(NcclComm comm);
};

// Throws Error(kConfig) with advice if NCCL is missing or too old.
const NcclLibrary& nccl_library();

}  // namespace bev
