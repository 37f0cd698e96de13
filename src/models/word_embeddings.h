// The word embeddings of a stage: its own, or those that an earlier stage of the rank has. Several
// pipeline ranks may hold them (a tied output layer, a second sequence, multi-token prediction);
// their gradients are then summed.
#pragma once

#include <optional>
#include <vector>

#include "models/model.h"

namespace bev {

class WordEmbeddings {
 public:
  // `shared`: an earlier stage's; null: the stage gets its own where its architecture uses them.
  WordEmbeddings(const ModelConfig& config, const StageRange& range, const BuildOptions& options,
                 Param* shared);

  Param* get() const { return param_; }  // null: the stage uses none
  // Says that each micro-batch uses them so many times more, as a lookup or as the output layer.
  void add_uses(int count);
  void params(std::vector<Param*>& list);
  // tokens [T] i32 -> [T, H] outside of the tensor-parallel region.
  Var look_up(Context& ctx, const Tensor& tokens) const;

 private:
  std::optional<Param> own_;
  Param* param_;
  double multiplier_;
  std::int64_t padding_row_;
  bool sequence_parallel_;
};

// An embedding [rows, columns] drawn with the model's standard deviation, cut over tp by rows or
// whole.
Param embedding_param(const char* name, std::int64_t rows, const ModelConfig& config, bool split);

}  // namespace bev
