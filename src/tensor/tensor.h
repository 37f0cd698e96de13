// A tensor: a view and a share of the block that it lies in. Copies share memory.
#pragma once

#include "tensor/arena.h"
#include "tensor/view.h"

namespace bev {

class Tensor {
 public:
  Tensor() = default;
  Tensor(Arena& arena, Dtype dtype, const Shape& shape, const char* tag) {
    view_.dtype = dtype;
    view_.shape = shape;
    block_ = arena.allocate(view_.bytes(), tag, &view_);
  }

  const View& view() const { return view_; }
  operator const View&() const { return view_; }
  Dtype dtype() const { return view_.dtype; }
  const Shape& shape() const { return view_.shape; }
  std::int64_t numel() const { return view_.numel(); }
  bool empty() const { return view_.empty(); }
  template <class T>
  T* as() const {
    return view_.as<T>();
  }

  // No other tensor shares the memory: it may be overwritten.
  bool unique() const { return block_.unique(); }
  Tensor reshape(const Shape& shape) const { return Tensor(view_.reshape(shape), block_); }
  Tensor rows(std::int64_t begin, std::int64_t end) const {
    return Tensor(view_.rows(begin, end), block_);
  }

 private:
  Tensor(const View& view, BlockRef block) : view_(view), block_(std::move(block)) {}
  View view_;
  BlockRef block_;
};

}  // namespace bev
