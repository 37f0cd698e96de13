// Owns the memory of a model's parameters and gradients in flat buffers cut into buckets, and
// shards them over the ranks that hold the same parameters (dp x cp), as far as the strategy says:
//
//   strategy             values    gradients   optimizer ranges
//   no_shard             whole     whole       all
//   optim                whole     whole       this rank's part of every bucket
//   optim_grads          whole     part        part
//   optim_grads_params   part      part        part
//
// A bucket holds whole parameters; its length is a multiple of the group size, and rank r owns the
// r-th equal part of it.
#pragma once

#include <cstdint>
#include <vector>

#include "autograd/context.h"
#include "optim/optimizer.h"
#include "parallel/bucket_layout.h"
#include "parallel/config.h"

namespace bev {

struct StoreOptions {
  Dtype dtype = Dtype::kF32;
  Dtype grad_dtype = Dtype::kF32;
  ShardingStrategy strategy = ShardingStrategy::kNoShard;
  bool gradients = true;  // false: inference, no gradient memory
  std::int64_t bucket_elements = 40'000'000;
};

class ParamStore final : public Weights, public Gradients {
 public:
  // Materialises the parameters: sets their index and local shape. They must outlive the store.
  ParamStore(std::vector<Param*> params, const Mesh& mesh, Arena& arena, const Kernels& kernels,
             Stream stream, const StoreOptions& options);

  const std::vector<Param*>& params() const { return params_; }
  const StoreOptions& options() const { return options_; }

  // Initial values by global element index: any layout draws the same weights.
  void initialise(std::uint64_t seed);

  WeightLease use(const Param& param) override;
  GradSink sink(const Param& param, const Placement& placement) override;
  void done(const Param& param, GradSink sink) override;

  // A new global batch: the next gradient of each parameter overwrites.
  void begin_step();
  // All micro-batches are done: sums what is partial over tp, over the holders of a tied embedding
  // and over data-parallel ranks. Then every rank has the gradient of what it owns.
  void finish_gradients();
  // Sum of squares of the gradient over all parameters of all ranks, each counted once.
  double gradient_square_sum();
  // After an update: every rank gets the values that others updated.
  void gather_values();

  std::vector<OptimRange> optim_ranges() const;

  // The whole local parameter (this rank's tp part) in the model's dtype: gathered when sharded.
  // Collective over dp x cp when the values are sharded.
  WeightLease local_value(const Param& param) { return use(param); }
  // The whole local gradient after finish_gradients; collective over dp x cp when sharded.
  WeightLease local_gradient(const Param& param);
  // Writes a whole local parameter into the store; each rank keeps its part.
  void set_local_value(const Param& param, const View& value);

 private:
  using Bucket = BucketLayout::Bucket;
  struct Slot {
    int bucket = 0;
    std::int64_t offset = 0;  // in the bucket
    bool fresh = true;        // no gradient yet in this step
    bool placed = false;
    Placement gradient;  // of what ops have added
  };
  bool shards(ShardingStrategy from) const {
    return group_.size() > 1 && options_.strategy >= from;
  }
  void place_params();
  Slot& slot_of(const Param& param) { return slots_[static_cast<std::size_t>(param.index)]; }
  const Slot& slot_of(const Param& param) const {
    return slots_[static_cast<std::size_t>(param.index)];
  }
  const Bucket& bucket_of(const Param& param) const {
    return buckets_[static_cast<std::size_t>(slot_of(param).bucket)];
  }
  Range owned(const Bucket& bucket) const;
  View bucket_part(const Tensor& flat, bool sharded, const Bucket& bucket) const;
  View param_view(const Tensor& flat, const Param& param) const;
  WeightLease gather(const Tensor& flat, bool sharded, const Param& param, const char* tag) const;
  void reduce_replicas(const Param& param, const View& gradient);

  std::vector<Param*> params_;
  const Mesh& mesh_;
  Group& group_;  // dp x cp
  Arena& arena_;
  const Kernels& kernels_;
  Stream stream_;
  StoreOptions options_;
  std::vector<Bucket> buckets_;
  std::vector<Slot> slots_;
  std::int64_t total_ = 0;
  Tensor values_, grads_;
};

}  // namespace bev
