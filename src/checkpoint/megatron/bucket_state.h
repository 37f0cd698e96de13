// Optimizer state as the buckets of Megatron's distributed optimizer hold it: flat ranges of the
// parameters of one model-parallel rank, in reverse order, with gaps for alignment.
//   optimizer.distributed.dp_group_idx_G.gbuf_idx_B.dtype_D.bucket_idx_I.exp_avg  (dp_reshardable)
// where G is the model-parallel rank, and B the buffer of a model chunk.
#pragma once

#include "checkpoint/megatron/foreign_tensor.h"
#include "checkpoint/megatron/rank_params.h"
#include "models/config.h"

namespace bev {

// Whether there is such state.
bool has_bucket_state(const ForeignTensors& tensors);

// All tensors, with state by parameter (optimizer.state.exp_avg.NAME) instead of buckets, if the
// model was made of modules of this kind. Empty if the sizes of the buckets do not fit that; if
// they do, main weights still have to be compared with the weights.
ForeignTensors bucket_state(const ModelConfig& config, const MegatronLayout& layout,
                            ModuleKind kind, const ForeignTensors& tensors);

}  // namespace bev
