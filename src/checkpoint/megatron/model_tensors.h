// How our tensors are made of Megatron's: names, stacked layers, query groups, experts, optimizer
// state, and the vocabulary's padding.
#pragma once

#include <map>
#include <set>
#include <string>

#include "checkpoint/manifest.h"
#include "checkpoint/megatron/foreign_tensor.h"
#include "checkpoint/piece.h"
#include "models/config.h"

namespace bev {

// Tensors under our names, with where their elements are.
struct ModelTensors {
  std::map<std::string, GlobalTensor> tensors;
  PieceTable pieces;
  std::set<std::string> used;  // of the foreign tensors
};

// Megatron's tensors of one parameter of ours are a permutation of its rows:
// rows [begin, begin + count) of ours are rows [theirs, theirs + count) there.
struct RowRun {
  std::int64_t begin = 0, theirs = 0, count = 0;
};
// For fused queries, keys and values: ours are q | k | v, Megatron's are for each query group its q
// heads, its k and its v. `rows` is that of the whole parameter; one run if it is no such one.
std::vector<RowRun> megatron_rows(const ModelConfig& config, const std::string& param,
                                  std::int64_t rows);

// Tensors of the model that are there; those that are missing are left out. Throws Error(kInput)
// that begins with `where` for one of another shape.
ModelTensors model_tensors(const ModelConfig& config, const ForeignTensors& foreign,
                           const std::string& where);

}  // namespace bev
