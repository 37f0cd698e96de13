// Offsets of parameters in the flat buffers (buckets) of a store. This is arithmetic without
// memory, so that the memory plan and the store follow the same rules.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "autograd/param.h"
#include "comm/placement.h"
#include "tensor/dtype.h"

namespace bev {

struct BucketRules {
  std::int64_t ranks = 1;          // that reduce its gradients; each owns a shard of equal length
  bool by_unit = false;            // a bucket is an FSDP unit
  std::int64_t elements = 0;       // otherwise a bucket is closed when it reaches this size
  std::int64_t expert_ranks = 1;   // `ranks` of buckets of expert weights
  std::int64_t part_multiple = 1;  // the length of a shard is a multiple of it
};

// One parameter that is placed into a bucket.
struct BucketItem {
  std::string_view unit;
  std::int64_t elements = 0;  // on this rank, of the dtype of stored_dtype()
  bool alone = false;         // has a bucket of its own
  // Elements on the tensor-parallel rank that has most of the parameter; 0: the same as `elements`.
  // Buckets are closed by this count, so that they hold the same parameters on all ranks even if
  // the vocabulary does not divide evenly.
  std::int64_t most_elements = 0;
  bool of_experts = false;  // expert weight: sharded over edp instead of dp x cp
  ParamFormat format = ParamFormat::kModel;
  bool trains = true;
};

// A bucket holds whole parameters of one format, either all trained or all frozen; shard r of it is
// the r-th equal range. Parameters that would share a bucket if all of them trained form a group:
// one bucket, or up to three if some of them are frozen and some of these quantised.
struct BucketLayout {
  struct Bucket {
    std::int64_t size = 0;
    std::vector<int> params = {};
    bool of_experts = false;
    ParamFormat format = ParamFormat::kModel;
    bool trains = true;
    int group = 0;
  };
  struct ParamSlot {
    int bucket = 0;
    std::int64_t offset = 0;  // in the bucket
  };
  std::vector<Bucket> buckets;
  std::vector<ParamSlot> places;         // by index of the parameter
  std::vector<std::vector<int>> groups;  // bucket indices of each group
};
// Which buckets a buffer has memory for. Frozen parameters have no gradients.
enum class BucketChoice : std::uint8_t { kAll, kTrained };

// The number of shards that a bucket is divided into.
struct BucketParts {
  std::int64_t dense = 1, experts = 1;

  std::int64_t of(const BucketLayout::Bucket& bucket) const {
    return bucket.of_experts ? experts : dense;
  }
};

// The FSDP unit of a parameter: weights that are used together are all-gathered and reduced
// together. Parameters without a unit use the module of their name ("decoder.final_layernorm").
std::string_view unit_of(const Param& param);
// Embeddings that two stages hold get a bucket of their own, so that both stages shard them alike.
BucketItem bucket_item(const Param& param, const ParamPart& part);

// Aligns the start of a parameter in its bucket to 64 elements.
std::int64_t padded_start(std::int64_t offset);
// `items` are in the order in which the forward uses the parameters.
BucketLayout layout_buckets(std::span<const BucketItem> items, const BucketRules& rules);
// Elements of the bucket that shard `index` of `parts` owns.
Range bucket_part_range(const BucketLayout::Bucket& bucket, std::int64_t parts, std::int64_t index);
// Layout of a buffer that holds one shard of each bucket, one after the other: the byte where each
// begins, then the total length. Buckets that are not chosen take no bytes.
std::vector<std::int64_t> bucket_begins(const BucketLayout& layout, Dtype dtype,
                                        const BucketParts& parts,
                                        BucketChoice choice = BucketChoice::kAll);
// Elements of a parameter that lie in a shard of its bucket; may be empty.
Range owned_range(const BucketLayout::ParamSlot& place, std::int64_t elements, Range part);

}  // namespace bev
