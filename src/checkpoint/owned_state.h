// Tensors of the training state under layout-independent names, and the parts that this rank holds:
// "NAME" is a weight in the model's dtype, "optimizer.main/NAME" its master weight,
// "optimizer.exp_avg/NAME" and "optimizer.exp_avg_sq/NAME" Adam's moments,
// "optimizer.momentum/NAME" SGD's and Muon's, and so on by the name of a state;
// "fp8.amax_history/NAME" and "fp8.amax/NAME" are the delayed scaling state of a layer, by the name
// of its weight. 8-bit moments are saved in bf16, which is exact, so their blocks and scales are
// not part of the state.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "parallel/engine.h"
#include "tensor/moment8.h"

namespace bev {

// Checkpoint dtype of a state tensor that is kept in dtype `kept`.
constexpr Dtype saved_dtype_of(Dtype kept) { return kept == Dtype::kU8 ? Dtype::kBf16 : kept; }

// Elements `range` of the flattened local parameter, contiguous in memory.
struct StatePart {
  std::string name;
  const Param* param = nullptr;
  Range range;
  View memory;
  View scales = {};  // of an 8-bit moment
  MomentFormat format = MomentFormat::kSigned;

  bool packed() const { return memory.dtype == Dtype::kU8; }
  // Dtype in the checkpoint.
  Dtype saved_dtype() const { return saved_dtype_of(memory.dtype); }
};

// True for a weight itself, false for other state.
bool is_weight(std::string_view tensor);
// "optimizer.main/NAME", the master weight.
std::string main_name(const std::string& param);
bool is_main_name(std::string_view tensor);
// The parameter that an optimizer tensor is a moment of; "": it is none.
std::string moment_of(std::string_view tensor);
// State that a run can start without: delayed scaling.
bool is_optional(std::string_view tensor);

// The parameters of a run that are kept in NF4. They are no part of its state: they are read again
// from where they came from.
std::set<std::string, std::less<>> nf4_params(const ModelOptions& options);
// All tensors of a run with these options, over all ranks.
std::map<std::string, GlobalTensor> global_tensors(const ModelOptions& options,
                                                   bool with_optimizer);

// The state that this rank updates; its replicas hold the same.
std::vector<StatePart> owned_state(Engine& engine, bool with_optimizer);
std::vector<StatePart> owned_optimizer_state(Engine& engine);
// Replicated on every rank of a stage.
std::vector<StatePart> scale_state(Engine& engine);

// Elements of a part that this rank writes: ranks that hold the same elements divide them, in
// shares of at least `least` elements.
Range written_range(const Engine& engine, const StatePart& part, std::int64_t least);

}  // namespace bev
