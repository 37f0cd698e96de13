#include "tensor/view.h"

namespace bev {

View View::rows(std::int64_t begin, std::int64_t end) const {
  BEV_CHECK(shape.ndim() >= 1 && begin >= 0 && begin <= end && end <= shape[0], "view: rows ",
            begin, "..", end, " of ", shape);
  View part = *this;
  part.shape[0] = end - begin;
  part.data = static_cast<std::byte*>(data) +
              static_cast<std::size_t>(begin * shape.row_numel()) * size_of(dtype);
  return part;
}

View View::reshape(Shape to) const {
  BEV_CHECK(to.numel() == numel(), "view: ", shape, " cannot become ", to);
  View other = *this;
  other.shape = to;
  return other;
}

}  // namespace bev
