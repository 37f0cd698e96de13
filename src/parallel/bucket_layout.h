// Where parameters lie in the flat buffers of a store: numbers only, so that a plan of memory and
// the store itself follow the same rules.
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
  std::int64_t ranks = 1;          // that sum its gradients and get parts of the same length
  bool by_unit = false;            // a bucket is a unit
  std::int64_t elements = 0;       // otherwise it is closed when it has as many
  std::int64_t expert_ranks = 1;   // `ranks` of buckets of experts
  std::int64_t part_multiple = 1;  // of the length of a part
};

// What a bucket is made of: one parameter.
struct BucketItem {
  std::string_view unit;
  std::int64_t elements = 0;  // on this rank
  bool alone = false;         // has a bucket of its own
  // On the tensor-parallel rank that has most of it. Buckets are closed by this count, so that they
  // hold the same parameters on all ranks where a vocabulary does not divide. 0: as here.
  std::int64_t most_elements = 0;
  bool of_experts = false;  // shared out over other ranks than the rest
  ParamFormat format = ParamFormat::kModel;
  bool trains = true;
};

// A bucket holds whole parameters, either trained or frozen ones, of one format; part r of it is
// the r-th equal range. Parameters that would share a bucket if all of them trained form a group:
// one bucket, or two where some are frozen.
struct BucketLayout {
  struct Bucket {
    std::int64_t size = 0;
    std::vector<int> params = {};
    bool of_experts = false;
    ParamFormat format = ParamFormat::kModel;
    bool trains = true;
    int group = 0;
  };
  struct Place {
    int bucket = 0;
    std::int64_t offset = 0;  // in the bucket
  };
  std::vector<Bucket> buckets;
  std::vector<Place> places;             // of each parameter
  std::vector<std::vector<int>> groups;  // the buckets of each
};
// Which buckets a buffer has memory for: frozen parameters have no gradients.
enum class BucketChoice : std::uint8_t { kAll, kTrained };

// Into how many parts buckets are cut.
struct BucketParts {
  std::int64_t dense = 1, experts = 1;

  std::int64_t of(const BucketLayout::Bucket& bucket) const {
    return bucket.of_experts ? experts : dense;
  }
};

// The FSDP unit of a parameter: what is computed together is gathered and reduced together. The
// module of its name where it has none ("decoder.final_layernorm").
std::string_view unit_of(const Param& param);
// Tables that two stages hold are alone, so that the stages cut them alike.
BucketItem bucket_item(const Param& param, const ParamPart& part);

// Start of a parameter in its bucket: multiples of 64 elements.
std::int64_t padded_start(std::int64_t offset);
// For parameters in the order of their use.
BucketLayout layout_buckets(std::span<const BucketItem> items, const BucketRules& rules);
// Elements of its bucket that part `index` of `parts` owns.
Range bucket_part_range(const BucketLayout::Bucket& bucket, std::int64_t parts, std::int64_t index);
// One part of each bucket after the other, in memory: the byte where each begins, and the length.
// Buckets that are not chosen take no bytes.
std::vector<std::int64_t> bucket_begins(const BucketLayout& layout, Dtype dtype,
                                        const BucketParts& parts,
                                        BucketChoice choice = BucketChoice::kAll);
// Which elements of a parameter lie in a part of its bucket; maybe none.
Range owned_range(const BucketLayout::Place& place, std::int64_t elements, Range part);

}  // namespace bev
