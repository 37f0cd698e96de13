// The device of a rank: its stream and memory, host/device transfers, events, CUDA graphs and
// traces.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "base/trace.h"
#include "comm/group.h"
#include "tensor/arena.h"
#include "tensor/stream.h"
#include "tensor/view.h"

namespace bev {

class Device : public GroupMaker {
 public:
  virtual Stream stream() = 0;
  virtual std::unique_ptr<MemorySource> memory() = 0;
};

// CUDA graph: work captured from a stream once, which start() launches again on the same addresses.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  virtual void start() = 0;
};

// Device-to-host copies on a separate stream, for one thread other than the one that owns the
// compute stream. The owner creates and destroys the copier, and must keep the memory unchanged
// between follow() and the last fetch.
class SideCopier {
 public:
  virtual ~SideCopier() = default;
  // Later fetches wait for the work enqueued on the compute stream so far. Called by its thread.
  virtual void follow() = 0;
  // The bytes are in `host` after wait(). Fetches complete in the order in which they were started.
  virtual Work fetch(const View& from, void* host) = 0;
  // Registers host memory for direct DMA. Returns the function to call before the memory is freed,
  // or null if it was not registered. Any thread may call it.
  using Unpin = void (*)(void* host);
  virtual Unpin pin(void* host, std::size_t bytes) = 0;
};

// Asynchronous copies between device and pinned host memory on a separate stream, for the thread of
// the compute stream, which never blocks. Copies of one lane run in order.
class CopyLane {
 public:
  virtual ~CopyLane() = default;
  // Later copies wait for the work enqueued on the compute stream so far.
  virtual void follow() = 0;
  // Either `from` or `to` must be in pinned_memory().
  virtual void copy(const void* from, void* to, std::size_t bytes) = 0;
  // Event after the copies enqueued so far; work enqueued on the compute stream after wait(), or
  // after the Work is dropped, runs after them.
  virtual Work mark() = 0;
};

// Device timestamp: a timing event recorded on a stream.
class DeviceTimestamp {
 public:
  virtual ~DeviceTimestamp() = default;
  // Both events must be of the same stream and have completed: the caller has waited for something
  // enqueued later.
  virtual double seconds_since(const DeviceTimestamp& earlier) const = 0;
};

struct DeviceOptions {
  int threads = 1;             // CPU threads of the rank
  bool deterministic = false;  // bitwise reproducible runs, at some cost of speed
  std::string cache_folder;    // where measured choices (autotuning) are cached; "": nowhere
  int local_rank = 0;          // on this machine; devices are assigned round-robin
  int limit_arch = 0;          // GPU architecture to choose kernels for; 0: that of the GPU
};

// Records what the streams of this process do while steps are traced. At most one exists at a time.
class DeviceTrace : public TraceWatcher {
 public:
  // All spans recorded, sorted by begin. Called after the last rank has stopped.
  virtual std::vector<DeviceSpan> take() = 0;
};

// Transfers are ordered with the work on the stream.
struct DeviceKernels {
  // Opens the device of one rank.
  std::unique_ptr<Device> (*open)(const DeviceOptions& options);
  // Null where kernels run on the host, and, after a warning, where the profiling library is
  // missing.
  std::unique_ptr<DeviceTrace> (*trace)();
  // The host memory may be reused on return.
  void (*upload)(const Stream&, const void* host, const View& to);
  // The bytes are in `host` after wait(), the only call that blocks on the device. `host` must stay
  // valid until then; other work may be enqueued in between.
  Work (*fetch)(const Stream&, const View& from, void* host);
  // Timestamp after the work enqueued so far. Null where the host clock is sufficient (CPU).
  std::unique_ptr<DeviceTimestamp> (*mark)(const Stream&);
  std::unique_ptr<SideCopier> (*open_copier)(const Stream&);
  std::unique_ptr<CopyLane> (*open_lane)(const Stream&);
  // Page-locked (pinned) host memory with one address for host and device: copies run at full
  // speed, and kernels and collectives can access it over the bus.
  std::unique_ptr<MemorySource> (*pinned_memory)();
  // Bytes of device memory that are free now; 0: not known.
  std::int64_t (*free_memory)(const Stream&);
  // Device-to-device copy of the same number of bytes.
  void (*copy)(const Stream&, const View& from, const View& to);
  // Captures the work that body() enqueues on the stream, without running it (CUDA graph capture).
  // body must have run before with the same shapes, and may neither upload nor fetch. Null on
  // backends where a launch runs at once and capture gains nothing.
  std::unique_ptr<DeviceGraph> (*capture)(const Stream&, FunctionRef<void()> body);
};

}  // namespace bev
