#include "parallel/store/packed_weights.h"

#include "kernels/gemm.h"

namespace bev {

PackedOperand* PackedWeights::use(const Param& param, const GemmArgs& gemm, std::int64_t uses) {
  if (uses * micro_batches_ == 1 || plan_.splits(ShardingStrategy::kOptimGradsParams))
    return nullptr;
  Entry& mine = entries_[static_cast<std::size_t>(param.index)][gemm.transpose_b ? 1 : 0];
  if (mine.memory.empty()) {
    std::size_t bytes = tools_.kernels.gemm.packed_bytes(gemm);
    if (bytes == 0) return nullptr;
    mine.memory =
        Tensor(tools_.arena, Dtype::kU8, {static_cast<std::int64_t>(bytes)}, "packed weights");
    mine.factor.memory = static_cast<std::byte*>(mine.memory.view().data);
  }
  return &mine.factor;
}

void PackedWeights::expire() {
  for (auto& forms : entries_) {
    for (Entry& entry : forms) entry.factor.made = false;
  }
}

}  // namespace bev
