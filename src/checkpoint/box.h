// Axis-aligned boxes of tensors, the unit of checkpoint resharding: under every layout a rank holds
// a few boxes of each global tensor.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/placement.h"
#include "tensor/shape.h"

namespace bev {

// Elements whose index is in [begin, end) in every dim; the box of a scalar has no dims.
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
// Intersection of two boxes of a tensor; nullopt if it is empty.
std::optional<Box> intersection(const Box& a, const Box& b);

// "[0:4,2:8]", in numpy's notation.
void append_text(std::string& out, const Box& box);
// Inverse of append_text; nullopt for any other text, empty dims or more than Shape::kMaxDims dims.
std::optional<Box> parse_box(std::string_view text);

// Decomposes elements [range.begin, range.end) of a flattened tensor into at most 2 * ndim - 1
// boxes, each of them contiguous, in order.
std::vector<Box> boxes_of_range(const Shape& shape, Range range);

// The same box in coordinates of the local shard and of the global tensor.
struct HeldBox {
  Box local, global;
};
// Boxes of elements `range` of the flattened local shard `part`.
std::vector<HeldBox> held_boxes(const Shape& global, const Split& split, const ParamPart& part,
                                Range range);

// Elements contiguous both in the memory of box `a` and in that of box `b`.
struct BoxRun {
  std::int64_t a = 0, b = 0, count = 0;
};
// Runs that cover `common`, which lies in both boxes.
std::vector<BoxRun> common_runs(const Box& a, const Box& b, const Box& common);

}  // namespace bev
