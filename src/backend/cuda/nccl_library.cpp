#include "backend/cuda/nccl_library.h"

#include <dlfcn.h>

#include <exception>
#include <utility>

#include "backend/cuda/queue.h"
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

void check_nccl(int result, const char* what) {
  if (result == 0) return;
  const char* cause = nccl_library().last_error(nullptr);
  // 5: invalid usage, which is what several ranks on one GPU are to it.
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

// While an error passes, others may never come to what is pending.
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
