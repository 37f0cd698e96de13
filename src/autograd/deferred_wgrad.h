// Deferred wgrad: weight-gradient work of schedules that split the backward (zero bubble).
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/spare_memory.h"

namespace bev {

struct Context;

class DeferredWgrad {
 public:
  // Adds the work of an op of a layer.
  template <class F>
  void add(const char* op, std::int64_t layer, F work) {
    items_.push_back(
        {op, layer,
         std::allocate_shared<Holder<F>>(SpareAllocator<Holder<F>>(memory_), std::move(work))});
  }
  // Runs all of it in the order of addition, and clears it.
  void run(Context& ctx);
  bool empty() const { return items_.empty(); }

 private:
  struct Work {
    virtual ~Work() = default;
    virtual void run(Context& ctx) = 0;
  };
  template <class F>
  struct Holder : Work {
    explicit Holder(F f) : work(std::move(f)) {}
    void run(Context& ctx) override { work(ctx); }
    F work;
  };
  struct Item {
    const char* op;
    std::int64_t layer;
    std::shared_ptr<Work> work;
  };
  std::vector<Item> items_;
  std::shared_ptr<SpareMemory> memory_ = std::make_shared<SpareMemory>();
};

}  // namespace bev
