// Names of tensors that Megatron's formats give differently, as torch_dist has them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace bev {

// An expert's parameter as ..mlp.experts.experts.EXPERT.., of ..experts.local_experts.3.. or
// ..experts.linear_fc1.weight3, where the rank's first expert is `first`. Other names stay.
void name_expert(std::string& name, std::int64_t first);

// The name without prefixes of wrapped models and of optimizers in a chain, with state of Megatron
// FSDP, optimizer.state.NAME.exp_avg, as optimizer.state.exp_avg.NAME. "" for what is no tensor of
// the model or its state (counters of steps).
std::string plain_name(std::string_view name);

// The number after `word` in the name is replaced by its sum with `shift`; false if there is none.
bool shift_number(std::string& name, std::string_view word, std::int64_t shift);

}  // namespace bev
