// Where the gradients of a step are added up, and how they are summed over ranks:
//
//   micro-batches -> tp (what is partial there) -> shards -> replicas -> holders of a shared table
//
// Two ways, by strategy. Whole (no_shard, optim): every rank adds all micro-batches in a flat
// buffer and communicates once per step, a bucket at a time. By unit (optim_grads,
// optim_grads_params): only this rank's part of the sum is kept, so a unit's gradients are
// exchanged as soon as a micro-batch has completed them: memory of one or two units, paid with an
// exchange per unit and micro-batch.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "parallel/gradient_wire.h"
#include "parallel/shard_plan.h"

namespace bev {

// Whether a gradient so placed is to be summed over tp, or etp where it is of experts.
bool partial_over_tp(const Param& param, const Placement& placement);

class GradientSums {
 public:
  virtual ~GradientSums() = default;

  // The sums; this rank's part of them is valid after finish().
  const FlatBuffer& buffer() const { return buffer_; }

  // A new global batch, of which every rank has `micro_batches`: the next gradients overwrite.
  virtual void begin_step(std::int64_t micro_batches) = 0;
  // As of Gradients. Ranks that share gradients call done() in the same order.
  GradSink sink(const Param& param, const Placement& placement);
  virtual void done(const Param& param) = 0;
  // Ends what is under way, between two micro-batches.
  virtual void pause() = 0;
  // All micro-batches are done.
  void finish();

 protected:
  GradientSums(const ShardPlan& plan, const StoreTools& tools, bool whole);

  virtual GradSink open_sink(const Param& param) = 0;
  // Sums over shards and replicas.
  virtual void reduce() = 0;

  // Sums what is partial over tp or etp; `bucket` holds all of it, unreduced.
  void sum_over_tp(int index, const View& bucket) const;
  // Of buckets that are cut into shards, or of all.
  void sum_over_replicas(bool all) const;
  // Before the next sum is posted: bf16 copies of one bucket may wait, not of all.
  static void make_room(std::vector<PostedSum>& posted);
  static void finish_all(std::vector<PostedSum>& sums);
  // The sum of a bucket over a group.
  SumAmong among(Group& group, int bucket) const;
  void zero(const View& view) const { tools_.kernels.fill(tools_.stream, view, 0); }

  const ShardPlan& plan_;
  const StoreTools& tools_;
  GradientWire wire_;
  FlatBuffer buffer_;

 private:
  struct Noted {
    bool known = false;
    Placement placement;
  };
  std::vector<Noted> placements_;  // of what ops add, by parameter
};

std::unique_ptr<GradientSums> make_gradient_sums(const ShardPlan& plan, const StoreTools& tools);

}  // namespace bev
