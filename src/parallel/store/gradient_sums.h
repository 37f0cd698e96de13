// Gradient accumulation and reduction over ranks:
//
//   micro-batches -> tp (partial gradients) -> shards -> replicas -> holders of a tied embedding
//
// There are two implementations, by ZeRO stage. WholeGradients (no_shard, optim) accumulates all
// micro-batches in a flat buffer and reduces once per step, bucket by bucket. FsdpUnitGradients
// (optim_grads, optim_grads_params) keeps this rank's shard of the sum only, so an FSDP unit is
// reduce-scattered as soon as a micro-batch has completed its gradients. That takes the memory of
// one or two units, and one reduce-scatter per unit and micro-batch.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "parallel/store/gradient_wire.h"
#include "parallel/store/shard_plan.h"

namespace bev {

// Whether a gradient of this placement must be reduced over tp (etp for expert weights).
bool partial_over_tp(const Param& param, const Placement& placement);

class GradientSums {
 public:
  virtual ~GradientSums() = default;

  // The accumulated gradients; this rank's shard is valid after finish().
  const FlatBuffer& buffer() const { return buffer_; }

  // Begins a global batch of `micro_batches` per rank: the next gradients overwrite.
  virtual void begin_step(std::int64_t micro_batches) = 0;
  // Contract of Gradients. Ranks that share gradients must call done() in the same order.
  GradSink sink(const Param& param, const Placement& placement);
  virtual void done(const Param& param) = 0;
  // Completes pending communication between two micro-batches.
  virtual void pause() = 0;
  // Called after the last micro-batch: completes the reduction.
  void finish();

 protected:
  GradientSums(const ShardPlan& plan, const StoreTools& tools, bool whole);

  virtual GradSink open_sink(const Param& param) = 0;
  // Reduces over shards and replicas.
  virtual void reduce() = 0;

  // Reduces partial gradients over tp or etp; `bucket` is the whole unreduced bucket.
  void sum_over_tp(int index, const View& bucket) const;
  // Reduces over replicas: the sharded buckets, or all buckets.
  void sum_over_replicas(bool all) const;
  // Called before the next sum is posted: limits the bf16 staging memory to one bucket.
  static void make_room(std::vector<PostedSum>& posted);
  static void finish_all(std::vector<PostedSum>& sums);
  // Describes the reduction of a bucket over a group.
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
  std::vector<Noted> placements_;  // placements of the gradients that ops add, by parameter
};

std::unique_ptr<GradientSums> make_gradient_sums(const ShardPlan& plan, const StoreTools& tools);

}  // namespace bev
