#include "data/sample_order.h"

#include <array>
#include <limits>
#include <memory>
#include <mutex>
#include <numeric>
#include <utility>
#include <vector>

#include "base/error.h"
#include "data/random/mt19937.h"

namespace bev {

namespace {

using Permutation = std::vector<std::uint32_t>;

// torch.randperm on the CPU with a generator seeded by the epoch.
Permutation random_permutation(std::int64_t count, std::int64_t epoch) {
  Permutation out(static_cast<std::size_t>(count));
  std::iota(out.begin(), out.end(), 0u);
  RandomState random(static_cast<std::uint64_t>(epoch));
  for (std::size_t i = 0; i + 1 < out.size(); ++i) {
    std::size_t partner = i + random.next() % (out.size() - i);
    std::swap(out[i], out[partner]);
  }
  return out;
}

}  // namespace

// Prefetching readers may already be in the next epoch, so two permutations are kept.
struct SampleOrder::Permutations {
  std::int64_t count = 0;
  std::mutex mutex;
  std::array<std::pair<std::int64_t, std::shared_ptr<const Permutation>>, 2> kept;

  std::shared_ptr<const Permutation> of(std::int64_t epoch) {
    std::lock_guard lock(mutex);
    auto& [kept_epoch, permutation] = kept[static_cast<std::size_t>(epoch % 2)];
    if (!permutation || kept_epoch != epoch) {
      kept_epoch = epoch;
      permutation = std::make_shared<Permutation>(random_permutation(count, epoch));
    }
    return permutation;
  }
};

SampleOrder::SampleOrder(const SampleOrderSpec& spec) : spec_(spec) {
  BEV_CHECK(spec.micro_batch_size > 0 && spec.data_parallel_size > 0, ErrorKind::kInternal,
            "sample order: micro-batches of ", spec.micro_batch_size, " on ",
            spec.data_parallel_size, " ranks");
  if (spec.kind == OrderKind::kSingle) return;
  std::int64_t block = spec.micro_batch_size * spec.data_parallel_size;
  epoch_samples_ = spec.num_samples / block * block;
  BEV_CHECK(epoch_samples_ > 0, ErrorKind::kConfig, "--dataloader-type: cyclic needs ", block,
            " samples, a micro-batch of ", spec.micro_batch_size, " for each of ",
            spec.data_parallel_size, " data-parallel ranks; the data has ", spec.num_samples);
  // From about this size on, torch draws 64 bits per sample.
  constexpr std::int64_t kMost = std::numeric_limits<std::uint32_t>::max() / 20;
  permutations_ = std::make_unique<Permutations>();
  permutations_->count = spec.data_sharding
                             ? epoch_samples_ / spec.data_parallel_size
                             : spec.num_samples / spec.micro_batch_size * spec.micro_batch_size;
  BEV_CHECK(permutations_->count < kMost, ErrorKind::kConfig, "--dataloader-type: cyclic shuffles ",
            permutations_->count, " samples, and the most is ", kMost - 1, "; use single");
}

SampleOrder::~SampleOrder() = default;

void SampleOrder::micro_batch(std::int64_t consumed_samples, std::int64_t rank,
                              std::span<std::int64_t> samples) const {
  std::int64_t size = spec_.micro_batch_size, ranks = spec_.data_parallel_size;
  BEV_CHECK(rank >= 0 && rank < ranks && static_cast<std::int64_t>(samples.size()) == size &&
                consumed_samples >= 0,
            ErrorKind::kInternal, "sample order: ", samples.size(), " samples at ",
            consumed_samples, " for rank ", rank, " of ", ranks);
  if (spec_.kind == OrderKind::kSingle) {
    std::iota(samples.begin(), samples.end(), consumed_samples + rank * size);
    return;
  }
  std::int64_t epoch = consumed_samples / epoch_samples_, at = consumed_samples % epoch_samples_;
  BEV_CHECK(at % (size * ranks) == 0, ErrorKind::kConfig,
            "--dataloader-type: cyclic goes on after ", consumed_samples, " samples, which is ", at,
            " into an epoch of ", epoch_samples_, " and no multiple of micro-batch size ", size,
            " x dp ", ranks, "; keep the batch and the ranks of the run before, or use single");
  std::shared_ptr<const Permutation> permutation = permutations_->of(epoch);
  for (std::int64_t i = 0; i < size; ++i) {
    std::int64_t place = spec_.data_sharding ? at / ranks + i : at + i * ranks + rank;
    std::int64_t first = spec_.data_sharding ? rank * (epoch_samples_ / ranks) : 0;
    samples[static_cast<std::size_t>(i)] = first + (*permutation)[static_cast<std::size_t>(place)];
  }
}

}  // namespace bev
