// A tensor: a view and a share of the block that it lies in. Copies share memory. Views are for use
// at once: a block may go and come back to another address, where tensors find it.
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
  // Only dtype and shape: a tensor that nobody has written.
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

  // No other tensor shares the memory: it may be overwritten.
  bool unique() const { return block_.unique(); }
  // The block that it lies in; null for an empty one.
  Block* block() const { return block_.get(); }
  Tensor reshape(const Shape& shape) const { return part(view_.reshape(shape)); }
  Tensor rows(std::int64_t begin, std::int64_t end) const { return part(view_.rows(begin, end)); }

 private:
  // `view` lies within view_.
  Tensor part(const View& view) const {
    Tensor out;
    out.view_ = view;
    out.block_ = block_;
    out.offset_ =
        offset_ + (static_cast<std::byte*>(view.data) - static_cast<std::byte*>(view_.data));
    return out;
  }
  mutable View view_;  // with the address at the last use
  BlockRef block_;
  std::ptrdiff_t offset_ = 0;  // in the block
};

}  // namespace bev
