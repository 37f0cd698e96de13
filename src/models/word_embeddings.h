// Word embeddings of a stage: its own, or those of an earlier stage on the same rank. Several
// pipeline ranks may hold copies (tied output layer, encoder-decoder, MTP); their gradients are
// then summed.
#pragma once

#include <optional>
#include <vector>

#include "models/model.h"
#include "nn/adapter.h"

namespace bev {

class WordEmbeddings {
 public:
  // `shared`: those of an earlier stage; null: the stage gets its own if its architecture uses
  // them.
  WordEmbeddings(const ModelConfig& config, const StageRange& range, const BuildOptions& options,
                 Param* shared);

  Param* get() const { return param_; }  // null: the stage uses none
  // Adds to the number of uses per micro-batch, as a lookup or as the output layer.
  void add_uses(int count);
  void params(std::vector<Param*>& list);
  // tokens [T] i32 -> [T, H] outside the tensor-parallel region.
  Var look_up(Context& ctx, const Tensor& tokens) const;

 private:
  std::optional<Param> own_;
  std::vector<LowRank> adapters_;  // of the first stage
  Param* param_;
  double multiplier_;
  std::int64_t padding_row_;
  bool sequence_parallel_;
};

// Embedding table [rows, hidden] with the initial standard deviation of the model, split over tp by
// rows or replicated.
Param embedding_param(const char* name, std::int64_t rows, const ModelConfig& config, bool split);

}  // namespace bev
