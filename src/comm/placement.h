// Where a tensor's elements live on the mesh. Every activation carries a Placement, a parameter
// carries a Split as well; ops check and propagate them, so a missing or doubled reduction has a
// name.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/shape.h"

namespace bev {

// Mesh axes: the dense grid (tp, cp, dp, pp) and the expert grid (etp, ep, edp) over the same
// ranks.
enum class Axis : std::uint8_t { kTp, kCp, kDp, kPp, kEtp, kEp, kEdp };
inline constexpr int kAxisCount = 7;
std::string_view name_of(Axis axis);

// What one mesh axis does to a tensor. The gradient of a tensor has the dual state:
//   replicated <-> replicated   all ranks have the whole value, and the whole gradient
//   shard(dim) <-> shard(dim)   each rank has its slice of the dim
//   copied     <-> partial      all have the value; each has a part of the gradient's sum
//   partial    <-> copied       each has a part of the sum; all have the gradient
enum class PlaceState : std::uint8_t { kReplicated, kShard0, kShard1, kCopied, kPartial };

class Placement {
 public:
  PlaceState operator[](Axis axis) const { return states_[static_cast<std::size_t>(axis)]; }
  Placement with(Axis axis, PlaceState state) const;
  // The placement that this tensor's gradient has.
  Placement dual() const;
  bool operator==(const Placement&) const = default;

 private:
  std::array<PlaceState, kAxisCount> states_{};
};

// "tp: shard(1), dp: shard(0)"; replicated axes are left out.
std::string to_text(const Placement& placement);
void append_text(std::string& out, const Placement& placement);

struct Range {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

// Part `index` of n things cut into `parts` as evenly as whole things allow (the first ones
// larger).
Range shard_range(std::int64_t n, std::int64_t parts, std::int64_t index);

// Which part of a parameter a rank has: part `index` of `parts` of what its split cuts, and of the
// experts where it has some.
struct ParamPart {
  std::int64_t parts = 1, index = 0;
  std::int64_t expert_parts = 1, expert_index = 0;
};

// How a parameter is cut over one mesh axis: dim -1 is whole on every rank. Each segment of the dim
// is cut by itself (fused q | k | v rows, gate | up rows), so a rank holds its part of each, in
// order. Parameters of experts are cut over etp, and besides their dim 0, the experts, over ep.
struct Split {
  Axis axis = Axis::kTp;
  int dim = -1;
  std::vector<std::int64_t> segments;  // sizes along dim, adding up to it; empty: one segment

  bool of_experts() const { return axis == Axis::kEtp; }
  Shape local_shape(const Shape& global, const ParamPart& part) const;
};

// A run of equal element order in both: local elements [local, local + count) of the flattened
// local tensor are global elements [global, global + count) of the flattened global one.
struct ElementRun {
  std::int64_t local = 0, global = 0, count = 0;
};
// The whole map from a rank's part to the global tensor, as runs in local order. Initial values,
// checkpoints, import and export all use this one map.
std::vector<ElementRun> element_runs(const Shape& global, const Split& split,
                                     const ParamPart& part);

}  // namespace bev
