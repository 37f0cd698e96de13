// Loading of NCCL at run time.
#include "backend/cuda/comm/nccl_library.h"

#include "backend/cuda/runtime/shared_library.h"
#include "base/error.h"

namespace bev {

namespace {

constexpr int kLeastVersion = 21000;
constexpr const char* kCure =
    "; ranks in several processes or on several GPUs need NCCL 2.10 or newer (libnccl2). Ranks "
    "that "
    "share one GPU need none as threads of one process";

NcclLibrary load_library() {
  SharedLibrary library("libnccl.so.2");
  BEV_CHECK(library.loaded(), ErrorKind::kConfig, "NCCL: ", library.problem(), kCure);
  auto find = [&](const char* name, auto*& function) {
    BEV_CHECK(library.find(function, name), ErrorKind::kConfig, "libnccl.so.2 has no ", name,
              kCure);
  };
  NcclLibrary nccl{};
  find("ncclGetVersion", nccl.get_version);
  find("ncclGetUniqueId", nccl.get_unique_id);
  find("ncclCommInitRank", nccl.comm_init_rank);
  find("ncclCommDestroy", nccl.comm_destroy);
  find("ncclCommAbort", nccl.comm_abort);
  find("ncclGroupStart", nccl.group_start);
  find("ncclGroupEnd", nccl.group_end);
  find("ncclAllReduce", nccl.all_reduce);
  find("ncclReduce", nccl.reduce);
  find("ncclBroadcast", nccl.broadcast);
  find("ncclAllGather", nccl.all_gather);
  find("ncclReduceScatter", nccl.reduce_scatter);
  find("ncclSend", nccl.send);
  find("ncclRecv", nccl.receive);
  find("ncclGetErrorString", nccl.error_string);
  find("ncclGetLastError", nccl.last_error);
  int version = 0;
  nccl.get_version(&version);
  BEV_CHECK(version >= kLeastVersion, ErrorKind::kConfig, "NCCL: its version is ", version, kCure);
  return nccl;
}

}  // namespace

const NcclLibrary& nccl_library() {
  static const NcclLibrary library = load_library();
  return library;
}

}  // namespace bev
