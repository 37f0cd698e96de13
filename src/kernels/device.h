// What a rank computes on: a stream and memory of one backend, and the way between host and device.
#pragma once

#include <memory>

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

struct DeviceOptions {
  int threads = 1;             // CPU threads of the rank
  bool deterministic = false;  // the same bits in every run, at some cost of speed
  int local_rank = 0;          // on this machine; its devices are dealt out in turn
};

// Transfers are ordered with the work of the stream.
struct DeviceKernels {
  // The device of one rank.
  std::unique_ptr<Device> (*open)(const DeviceOptions& options);
  // The host memory may be reused on return.
  void (*upload)(const Stream&, const void* host, const View& to);
  // Arrived on return.
  void (*download)(const Stream&, const View& from, void* host);
  // Device to device, the same bytes.
  void (*copy)(const Stream&, const View& from, const View& to);
};

}  // namespace bev
