// The tensors of a training state under names that no layout changes, and what this rank holds of
// them: "NAME" is a weight in the model's dtype, "optimizer.main/NAME" its main parameter,
// "optimizer.exp_avg/NAME" and "optimizer.exp_avg_sq/NAME" Adam's moments,
// "optimizer.momentum/NAME" that of SGD; "fp8.amax_history/NAME" and "fp8.amax/NAME" are what the
// delayed scales of a layer follow from, by the name of its weight. Moments in 8 bits are saved in
// bf16, which holds their numbers exactly: blocks and scales are no part of a state.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "parallel/engine.h"
#include "tensor/moment8.h"

namespace bev {

// Of a tensor of the state that is kept in `kept`.
constexpr Dtype saved_dtype_of(Dtype kept) { return kept == Dtype::kU8 ? Dtype::kBf16 : kept; }

// Elements `range` of the flattened local parameter, in memory one after the other.
struct StatePart {
  std::string name;
  const Param* param = nullptr;
  Range range;
  View memory;
  View scales = {};  // of a moment in 8 bits
  MomentFormat format = MomentFormat::kSigned;

  bool packed() const { return memory.dtype == Dtype::kU8; }
  // In which it is saved.
  Dtype saved_dtype() const { return saved_dtype_of(memory.dtype); }
};

// Whether it is the weight itself and not what a run keeps beside it.
bool is_weight(std::string_view tensor);
// "optimizer.main/NAME".
std::string main_name(const std::string& param);
bool is_main_name(std::string_view tensor);
// State without which a run can begin all the same: delayed scales.
bool is_optional(std::string_view tensor);

// Every tensor of a run with these options, on whatever rank it lies.
std::map<std::string, GlobalTensor> global_tensors(const ModelOptions& options,
                                                   bool with_optimizer);

// What this rank updates; its replicas hold the same.
std::vector<StatePart> owned_state(Engine& engine, bool with_optimizer);
std::vector<StatePart> owned_optimizer_state(Engine& engine);
// Every rank of a stage has all of it.
std::vector<StatePart> scale_state(Engine& engine);

// Which of a part's elements this rank writes: holders of the same elements share them, but none
// writes less than `least` while there is enough for one.
Range written_range(const Engine& engine, const StatePart& part, std::int64_t least);

}  // namespace bev
