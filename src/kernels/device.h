// What a rank computes on: a stream and memory of one backend, and the way between host and device.
#pragma once

#include <memory>
#include <string>
#include <vector>

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

// Work of a stream that was recorded once and can be started again, on the same memory.
class Recording {
 public:
  virtual ~Recording() = default;
  virtual void start() = 0;
};

// Brings memory of a device to the host beside the work of a stream, for one thread that is not the
// stream's. The stream's thread makes and destroys it, and must not let the memory change between
// follow() and the last fetch.
class SideCopier {
 public:
  virtual ~SideCopier() = default;
  // What the stream has been given so far comes before the fetches that follow. By the stream's
  // thread.
  virtual void follow() = 0;
  // The bytes are there after wait(). Fetches end in the order in which they began.
  virtual Work fetch(const View& from, void* host) = 0;
  // Lets the device write to host memory without a detour; what to call before that is freed, or
  // null. By any thread.
  using Unpin = void (*)(void* host);
  virtual Unpin pin(void* host, std::size_t bytes) = 0;
};

// Copies between the memory of a device and the host's beside the work of a stream, for the
// stream's own thread, which never waits. Copies of a lane are made one after the other.
class CopyLane {
 public:
  virtual ~CopyLane() = default;
  // What the stream has been given so far comes before the copies that follow.
  virtual void follow() = 0;
  // One of the places is of pinned_memory().
  virtual void copy(const void* from, void* to, std::size_t bytes) = 0;
  // The copies so far. What the stream is given after it was waited for, or dropped, comes later.
  virtual Work mark() = 0;
};

// A point in the work of a stream, which is given a time when the device passes it.
class Moment {
 public:
  virtual ~Moment() = default;
  // Of two moments of a stream that have passed: something that it was given later has been waited
  // for.
  virtual double seconds_since(const Moment& earlier) const = 0;
};

struct DeviceOptions {
  int threads = 1;             // CPU threads of the rank
  bool deterministic = false;  // the same bits in every run, at some cost of speed
  std::string cache_folder;    // where choices made by measuring are kept; "": nowhere
  int local_rank = 0;          // on this machine; its devices are dealt out in turn
};

// What the streams of this process do while steps are recorded. One at a time.
class DeviceTrace : public TraceWatcher {
 public:
  // All that was recorded, by begin; after the last rank has stopped.
  virtual std::vector<DeviceSpan> take() = 0;
};

// Transfers are ordered with the work of the stream.
struct DeviceKernels {
  // The device of one rank.
  std::unique_ptr<Device> (*open)(const DeviceOptions& options);
  // Null where nothing runs beside the host, and where the means are missing, after a warning.
  std::unique_ptr<DeviceTrace> (*trace)();
  // The host memory may be reused on return.
  void (*upload)(const Stream&, const void* host, const View& to);
  // There after wait(), which is the only call that waits for the device. Other work may be started
  // before it; `host` must stay until then.
  Work (*fetch)(const Stream&, const View& from, void* host);
  // After what the stream has been given so far. Null where the host's clock says it.
  std::unique_ptr<Moment> (*mark)(const Stream&);
  std::unique_ptr<SideCopier> (*open_copier)(const Stream&);
  std::unique_ptr<CopyLane> (*open_lane)(const Stream&);
  // Host memory that stays in place: copied at full speed, and kernels and transfers take it as
  // the device's own, over the bus.
  std::unique_ptr<MemorySource> (*pinned_memory)();
  // Device to device, the same bytes.
  void (*copy)(const Stream&, const View& from, const View& to);
  // See record(). Null where each start runs at once: nothing to gain.
  std::unique_ptr<Recording> (*record)(const Stream&, const void* body,
                                       void (*call)(const void* body));
};

// What body() starts on the stream, which is not run now. It must have run before with the same
// shapes, and may neither upload nor fetch.
template <class Body>
std::unique_ptr<Recording> record(const DeviceKernels& device, const Stream& stream,
                                  const Body& body) {
  return device.record(stream, &body,
                       [](const void* erased) { (*static_cast<const Body*>(erased))(); });
}

}  // namespace bev
