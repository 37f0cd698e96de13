// A tensor: a View plus a reference to the arena block that holds it. Copies share memory. Do not
// keep the View: an offloaded block may come back at another address, and view() finds it there.
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
  // Only dtype and shape, without memory.
  static Tensor unwritten(Dtype dtype, const Shape& shape) {
    Tensor out;
    out.view_.dtype = dtype;
    out.view_.shape = shape;
    return out;
  }

  const View& view() const {
    if (block_) {
      std::byte* at = static_cast<std::byte*>(block_.data()) + offset_;
      if (view_.data != at) view_.data = at;
    }
    return view_;
  }
  operator const View&() const { return view(); }
  Dtype dtype() const { return view_.dtype; }
  const Shape& shape() const { return view_.shape; }
  std::int64_t numel() const { return view_.numel(); }
  bool empty() const { return view_.empty(); }
  template <class T>
  T* as() const {
    return view().as<T>();
  }

  // True if no other tensor shares the block, so it may be overwritten.
  bool unique() const { return block_.unique(); }
  // Block that holds the data; null for an empty tensor.
  Block* block() const { return block_.get(); }
  Tensor reshape(const Shape& shape) const { return part(view_.reshape(shape)); }
  Tensor rows(std::int64_t begin, std::int64_t end) const { return part(view_.rows(begin, end)); }

 private:
  // `view` must lie within view_.
  Tensor part(const View& view) const {
    Tensor out;
    out.view_ = view;
    out.block_ = block_;
    out.offset_ =
        offset_ + (static_cast<std::byte*>(view.data) - static_cast<std::byte*>(view_.data));
    return out;
  }
  mutable View view_;  // address as of the last use
  BlockRef block_;
  std::ptrdiff_t offset_ = 0;  // bytes from the start of the block
};

}  // namespace bev
