// Weight-gradient work put off by a schedule that splits the backward (zero bubble, delayed wgrad).
#pragma once

#include <memory>
#include <utility>
#include <vector>

namespace bev {

struct Context;

class WeightWork {
 public:
  template <class F>
  void add(F work) {
    items_.push_back(std::make_unique<Holder<F>>(std::move(work)));
  }
  // Does all of it, in the order it came, and forgets it.
  void run(Context& ctx) {
    for (auto& item : items_) {
      item->run(ctx);
      item.reset();
    }
    items_.clear();
  }
  bool empty() const { return items_.empty(); }

 private:
  struct Item {
    virtual ~Item() = default;
    virtual void run(Context& ctx) = 0;
  };
  template <class F>
  struct Holder : Item {
    explicit Holder(F f) : work(std::move(f)) {}
    void run(Context& ctx) override { work(ctx); }
    F work;
  };
  std::vector<std::unique_ptr<Item>> items_;
};

}  // namespace bev
