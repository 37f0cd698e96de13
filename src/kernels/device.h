// What a rank computes on: a stream and memory of one backend, and the way between host and device.
#pragma once

#include <memory>

#include "comm/group.h"
#include "tensor/arena.h"
#include "tensor/stream.h"
#include "tensor/view.h"

namespace bev {

class Device {
 public:
  virtual ~Device() = default;
  virtual Stream stream() = 0;
  virtual std::unique_ptr<MemorySource> memory() = 0;
  // Collectives on this device's memory between the members of a group that talks through host
  // memory; the host group must outlive them.
  virtual std::unique_ptr<Group> make_group(Group& host) = 0;
};

// Transfers are ordered with the work of the stream.
struct DeviceKernels {
  // The device of one rank; `threads` are its CPU threads.
  std::unique_ptr<Device> (*open)(int threads);
  // The host memory may be reused on return.
  void (*upload)(const Stream&, const void* host, const View& to);
  // Arrived on return.
  void (*download)(const Stream&, const View& from, void* host);
  // Device to device, the same bytes.
  void (*copy)(const Stream&, const View& from, const View& to);
};

}  // namespace bev
