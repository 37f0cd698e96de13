// Device traces from the activity records of CUPTI: kernels, copies and fills. Each is attributed
// to the innermost open span of the thread that launched it: by the external correlation id pushed
// with the span or, for a kernel of a CUDA graph, by the span that was open when its node was
// captured.
#include "backend/cuda/runtime/device_trace.h"

#include "base/log.h"

#if __has_include(<cupti.h>)

#include <cuda_runtime.h>
#include <cupti.h>
#include <cxxabi.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <mutex>
#include <unordered_map>

#include "backend/cuda/runtime/shared_library.h"
#include "base/clock.h"
#include "base/error.h"

namespace bev {

namespace {

constexpr CUpti_ExternalCorrelationKind kOurIds = CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0;

struct Cupti {
  explicit Cupti(const SharedLibrary& library) {
    auto take = [&](auto*& function, const char* symbol) {
      complete &= library.find(function, symbol);
    };
    take(result_text, "cuptiGetResultString");
    take(set_clock, "cuptiActivityRegisterTimestampCallback");
    take(set_buffers, "cuptiActivityRegisterCallbacks");
    take(enable, "cuptiActivityEnable");
    take(disable, "cuptiActivityDisable");
    take(flush, "cuptiActivityFlushAll");
    take(next_record, "cuptiActivityGetNextRecord");
    take(push, "cuptiActivityPushExternalCorrelationId");
    take(pop, "cuptiActivityPopExternalCorrelationId");
  }

  bool complete = true;
  decltype(&cuptiGetResultString) result_text = nullptr;
  decltype(&cuptiActivityRegisterTimestampCallback) set_clock = nullptr;
  decltype(&cuptiActivityRegisterCallbacks) set_buffers = nullptr;
  decltype(&cuptiActivityEnable) enable = nullptr;
  decltype(&cuptiActivityDisable) disable = nullptr;
  decltype(&cuptiActivityFlushAll) flush = nullptr;
  decltype(&cuptiActivityGetNextRecord) next_record = nullptr;
  decltype(&cuptiActivityPushExternalCorrelationId) push = nullptr;
  decltype(&cuptiActivityPopExternalCorrelationId) pop = nullptr;
};

// Null after a warning.
const Cupti* load_cupti() {
  static const SharedLibrary library(concat("libcupti.so.", CUPTI_API_VERSION / 10000));
  static const Cupti cupti(library);
  if (!library.loaded()) {
    log_warning(concat("the trace will have no kernels: ", library.problem()));
    return nullptr;
  }
  if (!cupti.complete) log_warning("the trace will have no kernels: this CUPTI is too old");
  return cupti.complete ? &cupti : nullptr;
}

struct Launched {
  DeviceSpan span;
  std::uint32_t correlation = 0;
};

// Records that CUPTI has returned. Global, because its callbacks carry no user pointer.
struct Records {
  std::mutex mutex;
  std::vector<Launched> launched;
  std::unordered_map<std::uint32_t, std::uint64_t> asked_by;  // correlation id to span id
};
Records& records() {
  static const std::unique_ptr<Records> all = std::make_unique<Records>();
  return *all;
}

const char* copy_name(std::uint8_t kind) {
  switch (kind) {
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOD:
      return "copy to the device";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOH:
      return "copy to the host";
    case CUPTI_ACTIVITY_MEMCPY_KIND_PTOP:
      return "copy between devices";
    default:
      return "copy";
  }
}

template <class Record>
void add_launched(Records& all, const Record& record, const char* name) {
  DeviceSpan span;
  span.name = name;
  span.stream = record.streamId;
  span.begin_ns = static_cast<std::int64_t>(record.start);
  span.end_ns = static_cast<std::int64_t>(record.end);
  all.launched.push_back({std::move(span), record.correlationId});
}

void add_record(Records& all, const CUpti_Activity* record) {
  switch (record->kind) {
    case CUPTI_ACTIVITY_KIND_KERNEL:
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
      const auto* kernel = reinterpret_cast<const CUpti_ActivityKernel10*>(record);
      return add_launched(all, *kernel, kernel->name);
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY: {
      const auto* copy = reinterpret_cast<const CUpti_ActivityMemcpy6*>(record);
      return add_launched(all, *copy, copy_name(copy->copyKind));
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY2: {
      const auto* copy = reinterpret_cast<const CUpti_ActivityMemcpyPtoP4*>(record);
      return add_launched(all, *copy, copy_name(copy->copyKind));
    }
    case CUPTI_ACTIVITY_KIND_MEMSET:
      return add_launched(all, *reinterpret_cast<const CUpti_ActivityMemset4*>(record), "fill");
    case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: {
      const auto* link = reinterpret_cast<const CUpti_ActivityExternalCorrelation*>(record);
      if (link->externalKind == kOurIds) all.asked_by[link->correlationId] = link->externalId;
      return;
    }
    default:
      return;
  }
}

void CUPTIAPI give_buffer(std::uint8_t** buffer, std::size_t* bytes, std::size_t* most_records) {
  constexpr std::size_t kBytes = std::size_t{4} << 20, kAlignment = 64;
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(kAlignment, kBytes));
  *bytes = *buffer != nullptr ? kBytes : 0;
  *most_records = 0;
}

void CUPTIAPI take_buffer(CUcontext, std::uint32_t, std::uint8_t* buffer, std::size_t,
                          std::size_t valid_bytes) {
  const Cupti* cupti = load_cupti();
  {
    std::lock_guard lock(records().mutex);
    CUpti_Activity* record = nullptr;
    while (cupti->next_record(buffer, valid_bytes, &record) == CUPTI_SUCCESS) {
      add_record(records(), record);
    }
  }
  std::free(buffer);
}

std::uint64_t CUPTIAPI clock_ns() { return static_cast<std::uint64_t>(monotonic_nanoseconds()); }

std::string demangled(const std::string& name) {
  int status = 0;
  char* text = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status);
  std::string out = status == 0 && text != nullptr ? text : name;
  std::free(text);
  return out;
}

class CudaTrace final : public DeviceTrace {
 public:
  explicit CudaTrace(const Cupti& cupti) : cupti_(cupti) {
    check(cupti_.set_clock(clock_ns));
    check(cupti_.set_buffers(give_buffer, take_buffer));
  }

  void opened(std::uint64_t id) override { cupti_.push(kOurIds, id); }
  void closed() override {
    std::uint64_t last = 0;
    cupti_.pop(kOurIds, &last);
  }
  void started() override {
    std::lock_guard lock(mutex_);
    if (recording_ranks_++ > 0) return;
    for (CUpti_ActivityKind kind : kKinds) check(cupti_.enable(kind));
  }
  void stopped() override {
    cudaDeviceSynchronize();
    std::lock_guard lock(mutex_);
    if (--recording_ranks_ > 0) return;
    cupti_.flush(0);
    for (CUpti_ActivityKind kind : kKinds) cupti_.disable(kind);
  }

  std::vector<DeviceSpan> take() override {
    std::lock_guard lock(records().mutex);
    std::map<std::string, std::string> names;
    std::vector<DeviceSpan> out;
    for (Launched& launched : records().launched) {
      DeviceSpan& span = out.emplace_back(std::move(launched.span));
      auto [name, added] = names.try_emplace(span.name);
      if (added) name->second = demangled(span.name);
      span.name = name->second;
      auto call = records().asked_by.find(launched.correlation);
      if (call != records().asked_by.end()) span.asked_by = call->second;
    }
    records().launched.clear();
    records().asked_by.clear();
    std::ranges::stable_sort(out, {}, &DeviceSpan::begin_ns);
    return out;
  }

 private:
  // External ids are attached to API call records, so runtime and driver calls are recorded too.
  static constexpr std::array kKinds = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                        CUPTI_ACTIVITY_KIND_MEMCPY,
                                        CUPTI_ACTIVITY_KIND_MEMCPY2,
                                        CUPTI_ACTIVITY_KIND_MEMSET,
                                        CUPTI_ACTIVITY_KIND_RUNTIME,
                                        CUPTI_ACTIVITY_KIND_DRIVER,
                                        CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION};

  void check(CUptiResult result) const {
    const char* text = "";
    if (result != CUPTI_SUCCESS) cupti_.result_text(result, &text);
    BEV_CHECK(result == CUPTI_SUCCESS, ErrorKind::kDevice, "--profile-trace: CUPTI: ", text);
  }

  const Cupti& cupti_;
  std::mutex mutex_;
  int recording_ranks_ = 0;
};

}  // namespace

std::unique_ptr<DeviceTrace> make_cuda_trace() {
  const Cupti* cupti = load_cupti();
  return cupti != nullptr ? std::make_unique<CudaTrace>(*cupti) : nullptr;
}

}  // namespace bev

#else

namespace bev {

std::unique_ptr<DeviceTrace> make_cuda_trace() {
  log_warning("the trace will have no kernels: this program was built without CUPTI's headers");
  return nullptr;
}

}  // namespace bev

#endif
