// Placement of tensors on the mesh (Shard / Replicate / Partial). Every activation carries a
// Placement, a parameter a Split as well; ops check and propagate them, so that a missing or
// doubled reduction is an error that names the op.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/shape.h"

namespace bev {

// Mesh axes: dense grid (tp, cp, dp, pp) and expert grid (etp, ep, edp) over the same ranks.
enum class Axis : std::uint8_t { kTp, kCp, kDp, kPp, kEtp, kEp, kEdp };
inline constexpr int kAxisCount = 7;
std::string_view name_of(Axis axis);

// State of a tensor along one mesh axis. Its gradient has the dual state:
//   replicated <-> replicated   every rank has the whole value, and the whole gradient
//   shard(dim) <-> shard(dim)   each rank has its slice of the dim
//   copied     <-> partial      every rank has the value, and one summand of the gradient
//   partial    <-> copied       each rank has one summand of the value; all have the gradient
enum class PlaceState : std::uint8_t { kReplicated, kShard0, kShard1, kCopied, kPartial };

class Placement {
 public:
  PlaceState operator[](Axis axis) const { return states_[static_cast<std::size_t>(axis)]; }
  Placement with(Axis axis, PlaceState state) const;
  // Placement of this tensor's gradient.
  Placement dual() const;
  bool operator==(const Placement&) const = default;

 private:
  std::array<PlaceState, kAxisCount> states_{};
};

// "tp: shard(1), dp: shard(0)"; replicated axes are omitted.
std::string to_text(const Placement& placement);
void append_text(std::string& out, const Placement& placement);

struct Range {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

// Part `index` of n items split into `parts` as evenly as possible (the first ones are larger).
Range shard_range(std::int64_t n, std::int64_t parts, std::int64_t index);

// Which part of a parameter a rank holds: part `index` of `parts` along its split dim, and likewise
// of the experts if it has some.
struct ParamPart {
  std::int64_t parts = 1, index = 0;
  std::int64_t expert_parts = 1, expert_index = 0;
};

// How a parameter is sharded over one mesh axis; dim -1: replicated. Each segment of the dim is
// sharded separately (fused q | k | v rows, gate | up rows), so a rank holds its part of each, in
// order. Expert parameters have the axis etp, also if they are replicated over it, and their dim 0,
// the experts, is sharded over ep as well.
struct Split {
  Axis axis = Axis::kTp;
  int dim = -1;
  std::vector<std::int64_t> segments;  // sizes along dim, which add up to it; empty: one segment

  bool of_experts() const { return axis == Axis::kEtp; }
  bool whole() const { return dim < 0 && !of_experts(); }  // every rank has all of it
  Shape local_shape(const Shape& global, const ParamPart& part) const;
};

// Contiguous in both tensors: elements [local, local + count) of the flattened local tensor are
// elements [global, global + count) of the flattened global one.
struct ElementRun {
  std::int64_t local = 0, global = 0, count = 0;
};
// Complete map from a rank's shard to the global tensor, as runs in local order. Initialisation,
// checkpoints, import and export all use this map.
std::vector<ElementRun> element_runs(const Shape& global, const Split& split,
                                     const ParamPart& part);

}  // namespace bev
