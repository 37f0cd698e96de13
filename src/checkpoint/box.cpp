#include "checkpoint/box.h"

#include <algorithm>
#include <charconv>

#include "base/divide.h"
#include "base/error.h"

namespace bev {

void Box::set(int dim, Range range) {
  begin[dim] = range.begin;
  end[dim] = range.end;
}

Shape Box::shape() const {
  Shape out = begin;
  for (int i = 0; i < ndim(); ++i) out[i] = end[i] - begin[i];
  return out;
}

Box whole_box(const Shape& shape) {
  Box box{shape, shape};
  for (int i = 0; i < shape.ndim(); ++i) box.begin[i] = 0;
  return box;
}

std::optional<Box> intersection(const Box& a, const Box& b) {
  Box common = a;
  for (int i = 0; i < a.ndim(); ++i) {
    common.set(i, {std::max(a.begin[i], b.begin[i]), std::min(a.end[i], b.end[i])});
    if (common.begin[i] >= common.end[i]) return std::nullopt;
  }
  return common;
}

void append_text(std::string& out, const Box& box) {
  out.push_back('[');
  for (int i = 0; i < box.ndim(); ++i) {
    out += concat(i > 0 ? "," : "", box.begin[i], ":", box.end[i]);
  }
  out.push_back(']');
}

namespace {
// Parses digits without a sign or leading zeros.
std::optional<std::int64_t> parse_index(std::string_view text) {
  std::int64_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  bool whole = error == std::errc() && end == text.data() + text.size();
  if (!whole || value < 0 || (text.size() > 1 && text.front() == '0')) return std::nullopt;
  return value;
}
}  // namespace

std::optional<Box> parse_box(std::string_view text) {
  if (text.size() < 2 || text.front() != '[' || text.back() != ']') return std::nullopt;
  text = text.substr(1, text.size() - 2);
  if (text.empty()) return Box();
  std::vector<std::int64_t> begin, end;
  for (const std::string& dim : split(text, ',')) {
    std::size_t colon = dim.find(':');
    if (colon == std::string::npos) return std::nullopt;
    auto from = parse_index(std::string_view(dim).substr(0, colon));
    auto to = parse_index(std::string_view(dim).substr(colon + 1));
    if (!from || !to || *from >= *to) return std::nullopt;
    begin.push_back(*from);
    end.push_back(*to);
  }
  if (begin.size() > Shape::kMaxDims) return std::nullopt;
  return Box{Shape(begin), Shape(end)};
}

namespace {
// Decomposes a range of elements under fixed indices of the dims before `dim`, which `box` already
// has.
void cut_range(const Shape& shape, int dim, Box box, Range range, std::vector<Box>& out) {
  if (range.size() <= 0) return;
  if (dim == shape.ndim()) {
    out.push_back(box);
    return;
  }
  std::int64_t inner = 1;
  for (int i = dim + 1; i < shape.ndim(); ++i) inner *= shape[i];
  std::int64_t first_whole = ceil_div(range.begin, inner), end_whole = range.end / inner;
  auto cut_row = [&](std::int64_t row, Range within) {
    Box part = box;
    part.set(dim, {row, row + 1});
    cut_range(shape, dim + 1, part, {within.begin - row * inner, within.end - row * inner}, out);
  };
  if (first_whole > end_whole) return cut_row(end_whole, range);  // inside one row
  if (range.begin < first_whole * inner) {
    cut_row(first_whole - 1, {range.begin, first_whole * inner});
  }
  if (first_whole < end_whole) {
    box.set(dim, {first_whole, end_whole});
    out.push_back(box);
  }
  if (end_whole * inner < range.end) cut_row(end_whole, {end_whole * inner, range.end});
}
}  // namespace

std::vector<Box> boxes_of_range(const Shape& shape, Range range) {
  std::vector<Box> out;
  cut_range(shape, 0, whole_box(shape), range, out);
  return out;
}

std::vector<HeldBox> held_boxes(const Shape& global, const Split& split, const ParamPart& part,
                                Range range) {
  std::vector<HeldBox> out;
  Shape local = split.local_shape(global, part);
  std::vector<ElementRun> runs;  // along the sharded dim
  if (split.dim >= 0) {
    runs =
        element_runs({global[split.dim]}, {Axis::kTp, 0, split.segments}, {part.parts, part.index});
  }
  std::int64_t first_expert =
      split.of_experts() ? shard_range(global[0], part.expert_parts, part.expert_index).begin : 0;
  for (const Box& local_box : boxes_of_range(local, range)) {
    HeldBox box{local_box, local_box};
    box.global.set(0, {box.local.begin[0] + first_expert, box.local.end[0] + first_expert});
    if (split.dim < 0) out.push_back(box);
    for (const ElementRun& run : runs) {
      std::int64_t begin = std::max(box.local.begin[split.dim], run.local);
      std::int64_t end = std::min(box.local.end[split.dim], run.local + run.count);
      if (begin >= end) continue;
      HeldBox held = box;
      held.local.set(split.dim, {begin, end});
      std::int64_t shift = run.global - run.local;
      held.global.set(split.dim, {begin + shift, end + shift});
      out.push_back(held);
    }
  }
  return out;
}

std::vector<BoxRun> common_runs(const Box& a, const Box& b, const Box& common) {
  int ndim = common.ndim();
  // Dims from `inner` on, and a range of the dim before them, are contiguous in both.
  int inner = ndim;
  while (inner > 0 && common.dim(inner - 1) == a.dim(inner - 1) &&
         common.dim(inner - 1) == b.dim(inner - 1)) {
    --inner;
  }
  int outer = std::max(inner - 1, 0);  // dims to iterate over
  Shape a_shape = a.shape(), b_shape = b.shape(), shape = common.shape();
  BoxRun run{0, 0, 1};
  for (int i = outer; i < ndim; ++i) run.count *= shape[i];
  std::int64_t rows = 1;
  for (int i = 0; i < outer; ++i) rows *= shape[i];
  std::vector<BoxRun> runs;
  runs.reserve(static_cast<std::size_t>(rows));
  Shape at = common.begin;
  for (std::int64_t row = 0; row < rows; ++row) {
    run.a = run.b = 0;
    for (int i = 0; i < ndim; ++i) {
      run.a = run.a * a_shape[i] + at[i] - a.begin[i];
      run.b = run.b * b_shape[i] + at[i] - b.begin[i];
    }
    runs.push_back(run);
    for (int i = outer - 1; i >= 0 && ++at[i] == common.end[i]; --i) at[i] = common.begin[i];
  }
  return runs;
}

}  // namespace bev
