// The interface of optimizers that update whole matrices: what a rank sends of the ranges that it
// owns, the states of a matrix, and how a matrix becomes its update. MatrixUpdates
// (optim/matrix_updates.h) brings matrices together and applies updates.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "optim/update_rule.h"

namespace bev {

struct DirectionArgs;

// A matrix of a parameter: the weight of a linear layer, of one expert, or one of q, k and v. A
// vector is a matrix of one row. Tensor parallelism may split it as its parameter.
struct MatrixBlock {
  const Param* param = nullptr;
  std::int64_t rows = 0, columns = 0;  // of the whole matrix
  bool vector = false;
  int split = -1;  // the dim that is split over tensor-parallel ranks; -1: none
  std::vector<std::int64_t> segments = {};  // along that dim, each split by itself; empty: one
  Range local = {};                         // elements of the flattened local parameter
  Shape local_shape = {};                   // rows and columns of the local part
  std::int64_t expert = 0;                  // local index; 0 if the parameter has no experts

  std::int64_t numel() const { return rows * columns; }
  std::int64_t size(int dim) const { return dim == 0 ? rows : columns; }
  // Ranges of the split dim that part `index` of `parts` holds, in its order.
  std::vector<Range> part_ranges(std::int64_t parts, std::int64_t index) const;
};

// Rows and columns of the matrices of a parameter, whatever holds it.
MatrixBlock matrix_shape(const Param& param);
// The matrices of the local part of a parameter, in its order. `tensor`: the ranks that it is split
// over; split_fused: segments of a fused parameter are matrices of their own.
std::vector<MatrixBlock> matrix_blocks(const Param& param, const Group& tensor, bool split_fused);

// A state of each matrix, by its name in checkpoints.
struct MatrixStateSpec {
  const char* name;
  Shape shape;
};

// The matrix that this rank computes in a round.
struct OwnedMatrix {
  const MatrixBlock& block;
  Group& tensor;                 // the ranks of its parts
  std::span<const View> states;  // of states(), whole on every rank of `tensor`
  View weights;                  // the local part of the master weights, if needs_weights()
  std::int64_t updates_before;
};

// Shape of a state of all matrices of a parameter.
Shape matrix_state_shape(const Param& param, const MatrixStateSpec& spec);

class MatrixRule {
 public:
  virtual ~MatrixRule() = default;
  // Dtype of directions and updates, for a model in `model`.
  virtual Dtype dtype(Dtype model) const = 0;
  virtual bool splits_fused() const { return false; }
  virtual bool needs_weights() const { return false; }
  // Whether update() has multiplied by the learning rate.
  virtual bool update_has_lr() const { return false; }
  virtual std::vector<MatrixStateSpec> states(const MatrixBlock&) const { return {}; }
  // Momentum of the direction that is sent: direction.momentum and nesterov are set.
  virtual void set_momentum(DirectionArgs&) const {}
  // Factor of the update of a matrix.
  virtual double factor(const MatrixBlock&) const { return 1; }
  // Replaces the direction in `local`, this rank's part of a matrix, by the update.
  virtual void update(Context& ctx, const OwnedMatrix& matrix, const View& local) const = 0;
};

// Each is made by a function of its own file.
std::unique_ptr<MatrixRule> make_muon(const OptimConfig& config);
std::unique_ptr<MatrixRule> make_adafactor(const OptimConfig& config);
std::unique_ptr<MatrixRule> make_soap(const OptimConfig& config);
// That of an optimizer for which needs_matrices() holds.
std::unique_ptr<MatrixRule> make_matrix_rule(const OptimConfig& config, OptimizerKind kind);

// A whole matrix: the memory of its only part, or memory of its own.
struct WholeMatrix {
  View view;
  Tensor hold = {};
};
// Gathers the parts over `tensor`. Collective.
WholeMatrix gather_whole(Context& ctx, const MatrixBlock& block, Group& tensor, const View& local);
// Copies this rank's part of `whole` to `local`.
void take_part(Context& ctx, const MatrixBlock& block, Group& tensor, const View& whole,
               const View& local);

}  // namespace bev
