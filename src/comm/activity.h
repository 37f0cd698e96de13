// What a rank is doing, for the watchdog's hang report: written by the rank's own thread, read by
// any thread.
#pragma once

#include <atomic>
#include <cstdint>

namespace bev {

// Names are string literals, because readers only see the address. A new step or action clears the
// fields below it.
class Activity {
 public:
  void set_step(std::int64_t step) {
    step_.store(step, std::memory_order_relaxed);
    set_action("", -1);
  }
  // Action of the schedule, such as "forward" of micro-batch 3; -1: outside the micro-batches.
  void set_action(const char* action, std::int64_t micro_batch) {
    action_.store(action, std::memory_order_relaxed);
    micro_batch_.store(micro_batch, std::memory_order_relaxed);
    set_op("", -1);
  }
  // layer -1: outside the layers.
  void set_op(const char* op, std::int64_t layer) {
    op_.store(op, std::memory_order_relaxed);
    layer_.store(layer, std::memory_order_relaxed);
  }

  struct Snapshot {
    std::int64_t step = -1, micro_batch = -1, layer = -1;  // -1: none
    const char *action = "", *op = "";
  };
  Snapshot snapshot() const {
    return {step_.load(std::memory_order_relaxed), micro_batch_.load(std::memory_order_relaxed),
            layer_.load(std::memory_order_relaxed), action_.load(std::memory_order_relaxed),
            op_.load(std::memory_order_relaxed)};
  }

 private:
  std::atomic<std::int64_t> step_{-1}, micro_batch_{-1}, layer_{-1};
  std::atomic<const char*> action_{""}, op_{""};
};

}  // namespace bev
