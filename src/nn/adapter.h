// Low-rank adapters (LoRA): a linear layer with an adapter computes y = W x + scale * B (A x), an
// embedding likewise with x the one-hot rows of the tokens. A fused weight (q | k | v, gate | up)
// has an adapter for each of its parts. With DoRA, outputs are multiplied by a trained magnitude
// over the norm of their row of W + scale * B A. With PiSSA the factors begin as the largest part
// of W, which a second adapter with the opposite, frozen factors takes away again: W itself never
// changes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "autograd/param.h"
#include "autograd/tape.h"
#include "comm/mesh.h"

namespace bev {

// The adapter of some rows of a weight.
struct LowRankSpec {
  std::string part;  // name of these rows, which names the adapter's parameters
  Range rows;        // rows of the weight, of each expert: whole segments of its split
  std::int64_t rank = 0;
  double scale = 1;
  double dropout = 0;                         // of the inputs of A
  bool magnitude = false;                     // DoRA
  int number = 0;                             // of the adapter among those of the model
  bool embedding = false;                     // of a table that is looked up
  bool opposite = false;                      // PiSSA's frozen factors
  InitRule init = {InitKind::kNormal, 0.02};  // of A; B is initialised with zeros
};

// The factors A [rank, in] and B [rows, rank], for experts with a dim in front. Of an embedding
// [V, H]: A [V, rank] and B [H, rank].
struct LowRank {
  Param a, b;
  std::optional<Param> magnitude;  // [rows]
  Range rows;
  double scale = 1, dropout = 0;
  int number = 0;
  int stream = 0;  // of random numbers, in the layer; the same for all parts of a weight

  void params(std::vector<Param*>& list);
  // The first of its columns among this rank's columns of the layer's output.
  std::int64_t first_column(const Param& weight, const Mesh& mesh) const;
};

// The adapter of a weight [out, in] or [experts, out, in]. The factor that has the weight's
// tensor-parallel dim is split like the weight; the other one is replicated.
LowRank make_low_rank(const Param& weight, const LowRankSpec& spec);

// The rows of a batch on this rank to which each adapter applies, by number. An adapter without
// rows is not computed.
struct AdapterRows {
  std::vector<std::vector<Range>> of;
};

// x in the rows to which the adapter applies, zeros in others.
Var in_own_rows(Context& ctx, const LowRank& adapter, const Var& x);
// Whether the adapter applies to any row.
bool has_rows(const Context& ctx, const LowRank& adapter);

// A copy of a parameter that trains in its place, while adapters apply (modules_to_save).
Param trained_copy_of(const Param& param);

// Whether a parameter, or what is kept of one of this name, belongs to an adapter.
bool is_adapter_name(std::string_view name);
inline bool is_adapter(const Param& param) { return is_adapter_name(param.name); }

}  // namespace bev
