// Axis-aligned boxes of tensors. A checkpoint is made of them: what a rank holds of a global
// tensor, whatever the layout, is a few boxes of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/placement.h"
#include "tensor/shape.h"

namespace bev {

// Elements whose index lies in [begin, end) in every dim; a scalar's box has no dims.
struct Box {
  Shape begin, end;

  int ndim() const { return begin.ndim(); }
  Range dim(int index) const { return {begin[index], end[index]}; }
  void set(int dim, Range range);
  Shape shape() const;
  std::int64_t numel() const { return shape().numel(); }
  bool operator==(const Box&) const = default;
};

Box whole_box(const Shape& shape);
// Of two boxes of one tensor; absent when they have no element in common.
std::optional<Box> intersection(const Box& a, const Box& b);

// "[0:4,2:8]", as numpy would write it.
void append_text(std::string& out, const Box& box);
// Absent unless it is such a text, with no dim empty and at most Shape::kMaxDims of them.
std::optional<Box> parse_box(std::string_view text);

// Elements [range.begin, range.end) of a flattened tensor: at most 2 * ndim - 1 boxes, each of them
// contiguous there, in order.
std::vector<Box> boxes_of_range(const Shape& shape, Range range);

// What a rank holds of a global tensor, in both coordinates.
struct HeldBox {
  Box local, global;
};
// The boxes that hold the given elements of a part, flattened.
std::vector<HeldBox> held_boxes(const Shape& global, const Split& split, const ParamPart& part,
                                Range range);

// Elements that lie next to each other both in memory of the box `a` and in memory of the box `b`.
struct BoxRun {
  std::int64_t a = 0, b = 0, count = 0;
};
// The runs that make up `common`, which lies in both.
std::vector<BoxRun> common_runs(const Box& a, const Box& b, const Box& common);

}  // namespace bev
