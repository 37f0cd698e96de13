// Which rank owns which part of a model's parameters, and flat buffers that follow it.
//
// Ranks that hold the same parameters (dp x cp) form a grid: `shards` own one part of every bucket
// each, `replicas` own the same part. Without sharding the shards are this rank alone and all
// others are its replicas, so one rule serves every strategy:
//
//   shards of 2, 2 replicas        rank 0: part 0 -- rank 1: part 1      a row: shards
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
#include "parallel/bucket_layout.h"
#include "parallel/config.h"
#include "tensor/stream.h"
#include "tensor/tensor.h"

namespace bev {

// How delayed scales follow from the largest numbers of steps before.
struct AmaxOptions {
  std::int64_t history_len = 1;
  bool largest = false;  // of the history; otherwise the newest
  std::int64_t interval = 1;
};

struct StoreOptions {
  Dtype dtype = Dtype::kF32;
  Dtype grad_dtype = Dtype::kF32;
  ShardingStrategy strategy = ShardingStrategy::kNoShard;
  bool gradients = true;             // false: inference, no gradient memory
  std::int64_t bucket_elements = 0;  // 0: max(40M, 1M per data-parallel rank)
  bool overlap_reduce = false;       // sum gradients as soon as they are complete
  bool overlap_gather = false;       // gather weights before they are used
  bool bf16_wire = false;            // gradients travel as bf16
  AmaxOptions amax;
  bool gather_payloads = false;  // of FP8 weights, instead of their values
};
StoreOptions store_options(const ParallelConfig& config, const OptimDtypes& dtypes, Dtype dtype,
                           const Fp8Config& fp8);
// Ranks that share out what one of them would keep whole, of experts or of the rest.
std::int64_t shard_count(const StoreOptions& options, const MeshShape& mesh, bool of_experts);
BucketRules bucket_rules(const StoreOptions& options, const MeshShape& mesh);

// What the parts of a store work with.
struct StoreTools {
  const Mesh& mesh;
  Arena& arena;
  const Kernels& kernels;
  Stream stream;
  StoreOptions options;
};

class ShardPlan {
 public:
  // Materialises the parameters: sets their index and local shape. They must outlive the plan.
  ShardPlan(std::vector<Param*> params, const Mesh& mesh, const StoreOptions& options);

  const std::vector<Param*>& params() const { return params_; }
  const Param& param(int index) const { return *params_[static_cast<std::size_t>(index)]; }
  Group& shards(int bucket) const { return *owners(bucket).shards; }
  Group& dense_shards() const { return *dense_.shards; }  // of all that is not of experts
  Group& replicas(int bucket) const { return *owners(bucket).replicas; }
  Group& replicas(const Param& param) const {
    return *(param.split.of_experts() ? experts_ : dense_).replicas;
  }
  // Whether the 8-bit payloads of a parameter are gathered, and its values are not.
  bool gathers_payload(const Param& param) const {
    return gather_payloads_ && dense_.shards->size() > 1 && param.fp8.used();
  }
  bool gathers_payloads(int bucket) const;  // of one of its parameters
  // Whether this rank keeps only its part of what the strategy `from` begins to share out.
  bool splits(ShardingStrategy from) const {
    bool shared = dense_.shards->size() > 1 || experts_.shards->size() > 1;
    return shared && strategy_ >= from;
  }

  int bucket_count() const { return static_cast<int>(layout_.buckets.size()); }
  // The buckets of one group, of trained and of frozen parameters that are used together.
  const std::vector<int>& group(int index) const {
    return layout_.groups[static_cast<std::size_t>(index)];
  }
  const BucketLayout::Bucket& bucket(int index) const {
    return layout_.buckets[static_cast<std::size_t>(index)];
  }
  const BucketLayout::Place& place(const Param& param) const {
    return layout_.places[static_cast<std::size_t>(param.index)];
  }
  bool trains(int index) const { return bucket(index).trains; }
  // This rank's part, in elements of the bucket.
  Range owned(int bucket) const;
  // What of the flattened local parameter lies in it; maybe nothing.
  Range owned(const Param& param) const;
  // Of all buckets, whole or this rank's part of each: as bucket_begins of their layout.
  std::vector<std::int64_t> begins(Dtype dtype, bool whole, BucketChoice choice) const;
  // A parameter in memory that holds its whole bucket.
  View in_bucket(const View& bucket, const Param& param) const;

 private:
  // The grid above, of the ranks that hold the same parameters: dp x cp, and edp for experts.
  struct Owners {
    Group *shards, *replicas;
  };
  const Owners& owners(int index) const { return bucket(index).of_experts ? experts_ : dense_; }

  std::vector<Param*> params_;
  ShardingStrategy strategy_;
  bool gather_payloads_;
  Owners dense_, experts_;
  BucketLayout layout_;
};

// The chosen buckets one after the other: whole, or this rank's part of each.
struct FlatBufferSpec {
  Dtype dtype;  // of ParamFormat::kModel
  bool whole;
  BucketChoice choice;
  const char* tag;
};
class FlatBuffer {
 public:
  FlatBuffer() = default;
  // Zeros.
  FlatBuffer(const ShardPlan& plan, const StoreTools& tools, const FlatBufferSpec& spec);

  bool whole() const { return whole_; }
  Dtype dtype(int bucket) const { return stored_dtype(plan_->bucket(bucket).format, dtype_); }
  View bucket(int index) const;          // whole only
  View param(const Param& param) const;  // whole only
  View owned(int bucket) const;          // this rank's part
  View owned(const Param& param) const;  // flat, maybe empty

 private:
  // Elements of a bucket, counted from where its memory here begins.
  View view(int bucket, Range elements) const;

  const ShardPlan* plan_ = nullptr;
  Dtype dtype_ = Dtype::kF32;
  bool whole_ = false;
  std::vector<std::int64_t> begins_;
  Tensor data_;
};

}  // namespace bev
