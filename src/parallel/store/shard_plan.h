// ZeRO sharding: which rank owns which shard of a model's parameters, and flat buffers laid out
// accordingly.
//
// Ranks that hold the same parameters (dp x cp) form a grid: the ranks of `shards` own one shard of
// every bucket each, the ranks of `replicas` own the same shard. Without sharding the group
// `shards` is this rank alone and all others are its replicas, so one rule serves every ZeRO stage
// (and HSDP, where both are larger than one):
//
//   2 shards, 2 replicas           rank 0: part 0 -- rank 1: part 1      a row: shards
//                                      |                 |
//                                  rank 2: part 0 -- rank 3: part 1      a column: replicas
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/mesh.h"
#include "kernels/kernels.h"
#include "models/fp8_config.h"
#include "optim/config.h"
#include "parallel/config.h"
#include "parallel/store/bucket_layout.h"
#include "tensor/stream.h"
#include "tensor/tensor.h"

namespace bev {

// Delayed scaling: how a scale follows from the amax history.
struct AmaxOptions {
  std::int64_t history_len = 1;
  bool largest = false;  // maximum of the history; otherwise the newest entry
  std::int64_t interval = 1;
};

struct StoreOptions {
  Dtype dtype = Dtype::kF32;
  Dtype grad_dtype = Dtype::kF32;
  ShardingStrategy strategy = ShardingStrategy::kNoShard;
  bool gradients = true;             // false: inference without gradient memory
  std::int64_t bucket_elements = 0;  // 0: max(40M, 1M per data-parallel rank)
  bool overlap_reduce = false;       // reduce gradients as soon as they are complete
  bool overlap_gather = false;       // prefetch: all-gather weights before they are used
  bool bf16_wire = false;            // reduce gradients with bf16 on the wire
  AmaxOptions amax;
  bool gather_payloads = false;  // all-gather FP8 payloads instead of values
};
StoreOptions store_options(const ParallelConfig& config, const OptimDtypes& dtypes, Dtype dtype,
                           const Fp8Config& fp8);
// Number of ranks that shard a bucket of expert weights, or of dense weights.
std::int64_t shard_count(const StoreOptions& options, const MeshShape& mesh, bool of_experts);
BucketRules bucket_rules(const StoreOptions& options, const MeshShape& mesh);

// What the components of a store share.
struct StoreTools {
  const Mesh& mesh;
  Arena& arena;
  const Kernels& kernels;
  Stream stream;
  StoreOptions options;
};

class ShardPlan {
 public:
  // Assigns each parameter its index and local shape. The parameters must outlive the plan.
  ShardPlan(std::vector<Param*> params, const Mesh& mesh, const StoreOptions& options);

  const std::vector<Param*>& params() const { return params_; }
  const Param& param(int index) const { return *params_[static_cast<std::size_t>(index)]; }
  Group& shards(int bucket) const { return *owners(bucket).shards; }
  Group& dense_shards() const { return *dense_.shards; }  // for all but expert weights
  Group& replicas(int bucket) const { return *owners(bucket).replicas; }
  Group& replicas(const Param& param) const {
    return *(param.split.of_experts() ? experts_ : dense_).replicas;
  }
  // The ranks that a split shards the parameter over: tp, or etp for expert weights.
  Group& tensor_parallel(const Param& param) const {
    return *(param.split.of_experts() ? experts_ : dense_).tensor_parallel;
  }
  // Whether FP8 payloads of a parameter are all-gathered instead of its values.
  bool gathers_payload(const Param& param) const {
    return gather_payloads_ && dense_.shards->size() > 1 && param.fp8.used();
  }
  bool gathers_payloads(int bucket) const;  // for any of its parameters
  // Whether this rank keeps only its shard of the state that is sharded from strategy `from` on.
  bool splits(ShardingStrategy from) const {
    bool shared = dense_.shards->size() > 1 || experts_.shards->size() > 1;
    return shared && strategy_ >= from;
  }

  int bucket_count() const { return static_cast<int>(layout_.buckets.size()); }
  // The buckets of a group: trained and frozen parameters that are used together.
  const std::vector<int>& group(int index) const {
    return layout_.groups[static_cast<std::size_t>(index)];
  }
  const BucketLayout::Bucket& bucket(int index) const {
    return layout_.buckets[static_cast<std::size_t>(index)];
  }
  const BucketLayout::ParamSlot& place(const Param& param) const {
    return layout_.places[static_cast<std::size_t>(param.index)];
  }
  bool trains(int index) const { return bucket(index).trains; }
  // This rank's shard, in elements of the bucket.
  Range owned(int bucket) const;
  // The part of the flattened local parameter, or of its bytes if it is quantised, in this rank's
  // shard; may be empty.
  Range owned(const Param& param) const;
  // That in the shard of another rank of shards().
  Range owned(const Param& param, int rank) const;
  // bucket_begins() of the layout, for whole buckets or for this rank's shards.
  std::vector<std::int64_t> begins(Dtype dtype, bool whole, BucketChoice choice) const;
  // A parameter inside the memory of its whole bucket; its bytes if it is quantised.
  View in_bucket(const View& bucket, const Param& param) const;

 private:
  // The grid above, over the ranks that hold the same parameters: dp x cp, or edp for expert
  // weights.
  struct Owners {
    Group *shards, *replicas, *tensor_parallel;
  };
  const Owners& owners(int index) const { return bucket(index).of_experts ? experts_ : dense_; }

  std::vector<Param*> params_;
  ShardingStrategy strategy_;
  bool gather_payloads_;
  Owners dense_, experts_;
  BucketLayout layout_;
};

// The chosen buckets one after the other: whole, or this rank's shard of each.
struct FlatBufferSpec {
  Dtype dtype;  // of ParamFormat::kModel
  bool whole;
  BucketChoice choice;
  const char* tag;
};
class FlatBuffer {
 public:
  FlatBuffer() = default;
  // The buffer is zero-initialised.
  FlatBuffer(const ShardPlan& plan, const StoreTools& tools, const FlatBufferSpec& spec);

  bool whole() const { return whole_; }
  Dtype dtype(int bucket) const { return stored_dtype(plan_->bucket(bucket).format, dtype_); }
  View bucket(int index) const;          // only if whole()
  View param(const Param& param) const;  // only if whole()
  View owned(int bucket) const;          // this rank's shard
  View owned(const Param& param) const;  // flat; may be empty

 private:
  // A range of a bucket, counted from where its memory begins on this rank.
  View view(int bucket, Range elements) const;

  const ShardPlan* plan_ = nullptr;
  Dtype dtype_ = Dtype::kF32;
  bool whole_ = false;
  std::vector<std::int64_t> begins_;
  Tensor data_;
};

}  // namespace bev
