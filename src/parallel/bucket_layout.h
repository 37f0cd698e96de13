// Where parameters lie in the flat buffers of a store: numbers only, so that a plan of memory and
// the store itself follow the same rules.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/placement.h"

namespace bev {

struct BucketRules {
  std::int64_t parts = 1;     // ranks that share a bucket; its length is a multiple of it
  bool one_param = false;     // every parameter has a bucket of its own
  std::int64_t elements = 0;  // a bucket this long is closed
};

// A bucket holds whole parameters; part r of it is the r-th equal range.
struct BucketLayout {
  struct Bucket {
    std::int64_t begin = 0, size = 0;  // in the flat index space
    std::vector<int> params;
  };
  struct Place {
    int bucket = 0;
    std::int64_t offset = 0;  // in the bucket
  };
  std::vector<Bucket> buckets;
  std::vector<Place> places;  // of each parameter
  std::int64_t total = 0;
};

// Start of a parameter in its bucket: multiples of 64 elements.
std::int64_t padded_start(std::int64_t offset);
// For parameters of these many local elements, in order.
BucketLayout layout_buckets(std::span<const std::int64_t> sizes, const BucketRules& rules);
// Elements of its bucket that part `index` of `parts` owns.
Range bucket_part_range(const BucketLayout::Bucket& bucket, std::int64_t parts, std::int64_t index);

}  // namespace bev
