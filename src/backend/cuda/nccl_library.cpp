#include "backend/cuda/nccl_library.h"

#include <dlfcn.h>

#include "base/error.h"

namespace bev {

namespace {

constexpr int kLeastVersion = 21000;
constexpr const char* kCure =
    "; ranks in several processes or on several GPUs need NCCL 2.10 or newer: install it "
    "(libnccl2) "
    "or put its folder into LD_LIBRARY_PATH. Ranks that share one GPU need none as threads of one "
    "process";

template <class Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  BEV_CHECK(function != nullptr, ErrorKind::kConfig, "libnccl.so.2 has no ", name, kCure);
}

NcclLibrary load_library() {
  void* library = ::dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  BEV_CHECK(library != nullptr, ErrorKind::kConfig, "NCCL: ", ::dlerror(), kCure);
  NcclLibrary nccl{};
  find(library, "ncclGetVersion", nccl.get_version);
  find(library, "ncclGetUniqueId", nccl.get_unique_id);
  find(library, "ncclCommInitRank", nccl.comm_init_rank);
  find(library, "ncclCommDestroy", nccl.comm_destroy);
  find(library, "ncclCommAbort", nccl.comm_abort);
  find(library, "ncclGroupStart", nccl.group_start);
  find(library, "ncclGroupEnd", nccl.group_end);
  find(library, "ncclAllReduce", nccl.all_reduce);
  find(library, "ncclReduce", nccl.reduce);
  find(library, "ncclBroadcast", nccl.broadcast);
  find(library, "ncclAllGather", nccl.all_gather);
  find(library, "ncclReduceScatter", nccl.reduce_scatter);
  find(library, "ncclSend", nccl.send);
  find(library, "ncclRecv", nccl.receive);
  find(library, "ncclGetErrorString", nccl.error_string);
  find(library, "ncclGetLastError", nccl.last_error);
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
