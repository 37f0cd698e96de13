#include "comm/placement.h"

#include "base/error.h"

namespace bev {

std::string_view name_of(Axis axis) {
  constexpr std::array<std::string_view, kAxisCount> kNames = {"tp",  "cp", "dp", "pp",
                                                               "etp", "ep", "edp"};
  return kNames[static_cast<std::size_t>(axis)];
}

Placement Placement::with(Axis axis, PlaceState state) const {
  Placement other = *this;
  other.states_[static_cast<std::size_t>(axis)] = state;
  return other;
}

Placement Placement::dual() const {
  Placement other = *this;
  for (PlaceState& state : other.states_) {
    if (state == PlaceState::kCopied) {
      state = PlaceState::kPartial;
    } else if (state == PlaceState::kPartial) {
      state = PlaceState::kCopied;
    }
  }
  return other;
}

void append_text(std::string& out, const Placement& placement) {
  constexpr std::array<std::string_view, 5> kNames = {"replicated", "shard(0)", "shard(1)",
                                                      "copied", "partial"};
  bool first = true;
  for (int i = 0; i < kAxisCount; ++i) {
    auto axis = static_cast<Axis>(i);
    if (placement[axis] == PlaceState::kReplicated) continue;
    out.append(concat(first ? "" : ", ", name_of(axis), ": ",
                      kNames[static_cast<std::size_t>(placement[axis])]));
    first = false;
  }
  if (first) out.append("replicated");
}

std::string to_text(const Placement& placement) {
  std::string out;
  append_text(out, placement);
  return out;
}

Range shard_range(std::int64_t n, std::int64_t parts, std::int64_t index) {
  std::int64_t each = n / parts, rest = n % parts;
  std::int64_t begin = index * each + (index < rest ? index : rest);
  return {begin, begin + each + (index < rest ? 1 : 0)};
}

namespace {
std::vector<std::int64_t> segments_of(const Shape& global, const Split& split) {
  if (split.segments.empty()) return {global[split.dim]};
  std::int64_t total = 0;
  for (std::int64_t size : split.segments) total += size;
  BEV_CHECK(total == global[split.dim], ErrorKind::kInternal, "split: segments add up to ", total,
            ", dim ", split.dim, " of ", global, " differs");
  return split.segments;
}
}  // namespace

Shape Split::local_shape(const Shape& global, const ParamPart& part) const {
  Shape local = global;
  if (of_experts()) {
    local[0] = shard_range(global[0], part.expert_parts, part.expert_index).size();
  }
  if (dim < 0) return local;
  local[dim] = 0;
  for (std::int64_t size : segments_of(global, *this)) {
    local[dim] += shard_range(size, part.parts, part.index).size();
  }
  return local;
}

std::vector<ElementRun> element_runs(const Shape& global, const Split& split,
                                     const ParamPart& cut) {
  Range experts{0, 1};  // of the dim 0 of experts' parameters
  std::int64_t expert_count = 1;
  if (split.of_experts()) {
    expert_count = global[0];
    experts = shard_range(expert_count, cut.expert_parts, cut.expert_index);
  }
  if (split.dim < 0) {
    std::int64_t size = global.numel() / expert_count;
    return {{0, experts.begin * size, experts.size() * size}};
  }
  std::int64_t outer = 1, inner = 1;
  for (int dim = 0; dim < split.dim; ++dim) outer *= global[dim];
  for (int dim = split.dim + 1; dim < global.ndim(); ++dim) inner *= global[dim];

  std::vector<ElementRun> runs;
  std::int64_t local = 0;
  std::int64_t rows_of_expert = outer / expert_count;
  Range rows{experts.begin * rows_of_expert, experts.end * rows_of_expert};
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    std::int64_t segment_begin = row * global[split.dim];
    for (std::int64_t size : segments_of(global, split)) {
      Range part = shard_range(size, cut.parts, cut.index);
      std::int64_t count = part.size() * inner, start = (segment_begin + part.begin) * inner;
      if (count > 0) {
        bool continues = !runs.empty() && runs.back().global + runs.back().count == start;
        if (continues) {
          runs.back().count += count;
        } else {
          runs.push_back({local, start, count});
        }
      }
      local += count;
      segment_begin += size;
    }
  }
  return runs;
}

}  // namespace bev
