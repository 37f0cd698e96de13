#include "data/sequence_schedule.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "base/divide.h"
#include "base/error.h"
#include "comm/placement.h"

namespace bev {

namespace {

constexpr double kBalance = 1.05;  // the largest load over the mean that needs no other division

double pairs_until(std::int64_t end) {
  return 0.5 * static_cast<double>(end) * static_cast<double>(end + 1);
}

// Pairs of a rank that holds chunks `rank` and 2 ranks - 1 - rank of a sequence (zigzag).
double shared_pairs(std::int64_t length, std::int64_t ranks, std::int64_t rank) {
  double pairs = 0;
  for (std::int64_t chunk : {rank, 2 * ranks - 1 - rank}) {
    const Range range = shard_range(length, 2 * ranks, chunk);
    pairs += pairs_until(range.end) - pairs_until(range.begin);
  }
  return pairs;
}

// The most tokens of a sequence that one of 2^power ranks holds.
std::int64_t share_of(std::int64_t length, int power) {
  return power == 0 ? length : 2 * ceil_div(length, std::int64_t{2} << power);
}

class Division {
 public:
  Division(std::span<const std::int64_t> lengths, const SequenceLimits& limits)
      : lengths_(lengths),
        limits_(limits),
        most_power_(std::countr_zero(static_cast<std::uint64_t>(limits.ranks))),
        mean_(total() / static_cast<double>(limits.ranks)) {
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      powers_.push_back(least_power(lengths[i], limits.max_tokens));
      BEV_CHECK(powers_.back() <= most_power_, ErrorKind::kInput, "a sequence of ", lengths[i],
                " tokens does not fit ", limits.ranks, " ranks of --max-seqlen-per-dp-cp-rank ",
                limits.max_tokens, " tokens; raise it, take more ranks or shorten the sequence");
      // Alone it would be more than a rank's part.
      while (powers_.back() < most_power_ && load(i) > kBalance * mean_) ++powers_.back();
    }
    by_load_.resize(lengths.size());
    std::iota(by_load_.begin(), by_load_.end(), std::size_t{0});
  }

  // Divides more sequences among more ranks until the loads are near equal.
  void balance() {
    for (assign(); most_load() > kBalance * mean_; assign()) {
      const auto worst = std::ranges::max_element(loads_) - loads_.begin();
      std::size_t largest = lengths_.size();
      for (std::size_t i = 0; i < lengths_.size(); ++i) {
        const bool here = powers_[i] < most_power_ && worst >> powers_[i] == blocks_[i];
        if (here && (largest == lengths_.size() || load(i) > load(largest))) largest = i;
      }
      if (largest == lengths_.size()) return;
      ++powers_[largest];
    }
  }

  SequenceSchedule packs() const {
    SequenceSchedule schedule;
    for (int power = most_power_; power >= 0; --power) {
      for (std::int64_t block = 0; block < limits_.ranks >> power; ++block) {
        pack_block(power, block, schedule.packs);
      }
    }
    for (std::int64_t rank = 0; rank < limits_.ranks; ++rank) {
      const auto held = std::ranges::count_if(
          schedule.packs, [&](const SequencePack& pack) { return pack.holds(rank); });
      schedule.micro_batches = std::max<std::int64_t>(schedule.micro_batches, held);
    }
    return schedule;
  }

 private:
  double total() const {
    double sum = 0;
    for (std::int64_t length : lengths_) sum += pairs_until(length);
    return sum;
  }
  double load(std::size_t i) const {
    return pairs_until(lengths_[i]) / static_cast<double>(std::int64_t{1} << powers_[i]);
  }
  double most_load() const { return std::ranges::max(loads_); }

  // Gives sequences to blocks, the heaviest first: to the block with the fewest tokens of those
  // that stay balanced, or else to that with the least load.
  void assign() {
    loads_.assign(static_cast<std::size_t>(limits_.ranks), 0);
    tokens_.assign(static_cast<std::size_t>(limits_.ranks), 0);
    blocks_.assign(lengths_.size(), 0);
    std::ranges::stable_sort(by_load_, std::greater(),
                             [&](std::size_t i) { return std::pair(powers_[i], load(i)); });
    for (std::size_t i : by_load_) {
      blocks_[i] = best_block(i);
      const std::int64_t ranks = std::int64_t{1} << powers_[i];
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        const auto at = static_cast<std::size_t>(blocks_[i] * ranks + rank);
        loads_[at] += shared_pairs(lengths_[i], ranks, rank);
        tokens_[at] += static_cast<double>(lengths_[i]) / static_cast<double>(ranks);
      }
    }
  }

  std::int64_t best_block(std::size_t i) const {
    const std::int64_t ranks = std::int64_t{1} << powers_[i];
    std::int64_t lightest = 0, fewest = -1;
    double light = 0, few = 0;
    for (std::int64_t block = 0; block < limits_.ranks / ranks; ++block) {
      const auto first = static_cast<std::size_t>(block * ranks);
      const auto count = static_cast<std::size_t>(ranks);
      const double now = std::ranges::max(std::span(loads_).subspan(first, count));
      const double held = std::ranges::max(std::span(tokens_).subspan(first, count));
      if (block == 0 || now < light) light = now, lightest = block;
      const bool balanced = now + load(i) <= mean_;
      if (balanced && (fewest < 0 || held < few)) few = held, fewest = block;
    }
    return fewest >= 0 ? fewest : lightest;
  }

  // First fit, the longest first.
  void pack_block(int power, std::int64_t block, std::vector<SequencePack>& packs) const {
    std::vector<std::size_t> mine;
    for (std::size_t i = 0; i < lengths_.size(); ++i) {
      if (powers_[i] == power && blocks_[i] == block) mine.push_back(i);
    }
    std::ranges::stable_sort(mine, std::greater(), [&](std::size_t i) { return lengths_[i]; });
    const std::size_t begin = packs.size();
    std::vector<std::int64_t> filled;
    for (std::size_t i : mine) {
      const std::int64_t share = share_of(lengths_[i], power);
      const auto fits = std::ranges::find_if(
          filled, [&](std::int64_t tokens) { return tokens + share <= limits_.max_tokens; });
      const auto at = static_cast<std::size_t>(fits - filled.begin());
      if (fits == filled.end()) {
        filled.push_back(0);
        packs.push_back({power, block});
      }
      filled[at] += share;
      packs[begin + at].sequences.push_back(i);
    }
  }

  std::span<const std::int64_t> lengths_;
  SequenceLimits limits_;
  int most_power_;
  double mean_;
  std::vector<int> powers_;
  std::vector<std::int64_t> blocks_;
  std::vector<std::size_t> by_load_;
  std::vector<double> loads_, tokens_;  // by rank
};

}  // namespace

int least_power(std::int64_t length, std::int64_t max_tokens) {
  int power = 0;
  while (share_of(length, power) > max_tokens && power < 40) ++power;
  return power;
}

SequenceSchedule schedule_sequences(std::span<const std::int64_t> lengths,
                                    const SequenceLimits& limits) {
  BEV_CHECK(std::has_single_bit(static_cast<std::uint64_t>(limits.ranks)) && limits.max_tokens > 1,
            ErrorKind::kInternal, "sequences of at most ", limits.max_tokens, " tokens on ",
            limits.ranks, " ranks");
  if (lengths.empty()) return {};
  Division division(lengths, limits);
  division.balance();
  return division.packs();
}

std::vector<double> attention_pairs(const SequenceSchedule& schedule,
                                    std::span<const std::int64_t> lengths, std::int64_t ranks) {
  std::vector<double> loads(static_cast<std::size_t>(ranks), 0.0);
  for (const SequencePack& pack : schedule.packs) {
    const std::int64_t shared = std::int64_t{1} << pack.power;
    for (std::int64_t rank = 0; rank < shared; ++rank) {
      double& load = loads[static_cast<std::size_t>(pack.block * shared + rank)];
      for (std::size_t i : pack.sequences) load += shared_pairs(lengths[i], shared, rank);
    }
  }
  return loads;
}

std::vector<double> fixed_attention_pairs(std::span<const std::int64_t> lengths, std::int64_t cp,
                                          std::int64_t dp) {
  std::vector<double> loads(static_cast<std::size_t>(cp * dp), 0.0);
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    const std::int64_t first = static_cast<std::int64_t>(i) % dp * cp;
    for (std::int64_t rank = 0; rank < cp; ++rank) {
      loads[static_cast<std::size_t>(first + rank)] += shared_pairs(lengths[i], cp, rank);
    }
  }
  return loads;
}

double imbalance(std::span<const double> loads) {
  const double sum = std::accumulate(loads.begin(), loads.end(), 0.0);
  return sum > 0 ? std::ranges::max(loads) * static_cast<double>(loads.size()) / sum : 1;
}

}  // namespace bev
