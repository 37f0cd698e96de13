// Updates of whole matrices, whatever rank owns which of their elements (ZeRO). Matrices are dealt
// out to the ranks that share their parameter, in rounds of one for each rank and of similar size:
//
//   elements --all-to-all--> a whole local part --update--> all-to-all --> elements
//
// Parts of tensor parallelism meet in the update itself (gather_whole). One rank needs no exchange.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "optim/matrix_rule.h"

namespace bev {

// A trained parameter, and which range of its flattened local elements each rank updates.
struct SharedParam {
  const Param* param = nullptr;
  Group* shards = nullptr;        // the ranks that own a range each
  Group* tensor = nullptr;        // the ranks that hold its other parts
  std::vector<Range> owned = {};  // by rank of `shards`
};

// A state of a matrix, kept by the rank that computes it, in the form of a part of a parameter.
struct MatrixState {
  Param declared;  // "optimizer.NAME/PARAM": all matrices of the parameter, split over experts
  Range range;     // elements of the local part
  Tensor memory;
};

class MatrixUpdates final : public UpdateRule {
 public:
  // `params` are all trained parameters that the rule updates on the ranks of `shards`, including
  // those of which this rank owns nothing, in the same order everywhere.
  MatrixUpdates(Context& ctx, std::unique_ptr<MatrixRule> rule, std::vector<RuleRange> ranges,
                std::vector<SharedParam> params);

  void step(Context& ctx) override;
  const std::vector<MatrixState>& states() const { return states_; }

 private:
  // This rank's elements of a block.
  struct Piece {
    std::size_t range;  // in ranges_
    Range within;       // elements of that range
    std::size_t block;
  };
  struct Round {
    Group* shards = nullptr;
    std::vector<std::size_t> blocks = {};  // the matrix of each rank; fewer than ranks at the end
    std::vector<Piece> pieces = {};        // in the order of blocks
    std::vector<std::int64_t> send = {}, receive = {};  // elements, by rank of `shards`
    std::size_t first_state = 0, state_count = 0;       // of this rank's matrix, in states_

    bool computes() const { return static_cast<std::size_t>(shards->rank()) < blocks.size(); }
    std::size_t own() const { return blocks[static_cast<std::size_t>(shards->rank())]; }
    bool exchanges() const { return shards->size() > 1; }
  };

  void deal_out(bool of_experts);
  Round make_round(std::span<const std::size_t> blocks) const;
  void make_states(Context& ctx, Round& round);
  void run(Context& ctx, const Round& round);
  // Brings the pieces in `send` together to this rank's matrix; returns its local part.
  Tensor collect(Context& ctx, const Round& round, const Tensor& send) const;
  template <class Body>
  void for_pieces(const Round& round, const View& buffer, const Body& body) const;

  std::unique_ptr<MatrixRule> rule_;
  std::vector<SharedParam> params_;
  std::vector<MatrixBlock> blocks_;
  std::vector<std::size_t> param_of_;  // of each block, in params_
  std::vector<Round> rounds_;
  std::vector<MatrixState> states_;
  std::vector<View> state_views_;
};

}  // namespace bev
