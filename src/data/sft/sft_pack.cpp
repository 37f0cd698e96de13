#include "data/sft/sft_pack.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "base/error.h"

namespace bev {

std::vector<std::vector<std::size_t>> pack_lengths(std::span<const std::int64_t> lengths,
                                                   std::int64_t capacity) {
  std::vector<std::size_t> order(lengths.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater{}, [&](std::size_t at) { return lengths[at]; });
  std::vector<std::vector<std::size_t>> bins;
  std::set<std::pair<std::int64_t, std::size_t>> room;  // (free space, bin)
  for (std::size_t at : order) {
    BEV_CHECK(lengths[at] <= capacity, ErrorKind::kInternal, "pack: length ", lengths[at],
              " into bins of ", capacity);
    auto tightest = room.lower_bound({lengths[at], 0});
    std::size_t bin = bins.size();
    std::int64_t left = capacity;
    if (tightest != room.end()) {
      std::tie(left, bin) = *tightest;
      room.erase(tightest);
    } else {
      bins.emplace_back();
    }
    bins[bin].push_back(at);
    if (left > lengths[at]) room.emplace(left - lengths[at], bin);
  }
  for (auto& bin : bins) std::ranges::sort(bin);
  return bins;
}

}  // namespace bev
