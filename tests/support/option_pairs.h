// Pairwise (all-pairs) testing of options: a short list of runs that contains every pair of values
// that can legally occur together, to find features that break each other.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "app/run_config.h"

namespace bev::test {

// One value index per option.
using Choice = std::vector<std::int64_t>;

struct OptionValue {
  std::string name;
  void (*apply)(RunConfig& run) = nullptr;
};
struct Option {
  std::string name;
  std::vector<OptionValue> values;
};

class OptionSpace {
 public:
  // A choice is legal if it breaks no configuration rule and has at most `most_ranks` ranks. Values
  // are applied in the order of the options.
  OptionSpace(std::vector<Option> options, std::int64_t most_ranks);

  // Resolved configuration of a choice, and its problems.
  std::pair<RunConfig, std::vector<std::string>> configure(const Choice& choice) const;
  std::string text(const Choice& choice) const;
  std::string text_of_pair(std::int64_t pair) const;

  // Pairs of values of two options are numbered by index.
  std::int64_t pair_count() const { return pair_count_; }
  std::vector<std::int64_t> pairs_of(const Choice& choice) const;
  // For each pair a legal choice that contains it, found by exhaustive search; otherwise empty.
  const std::vector<Choice>& witnesses() const { return witnesses_; }
  // Legal choices that together contain every pair with a witness; deterministic.
  std::vector<Choice> cover() const;

 private:
  // Values a of option i and b of option j, i < j.
  struct Pair {
    std::size_t i = 0, j = 0;
    std::int64_t a = 0, b = 0;
  };
  Pair pair_at(std::int64_t number) const;
  bool legal(const Choice& choice) const;
  void find_witnesses();
  Choice improved(Choice choice, const Pair& fixed, const std::vector<bool>& covered) const;

  std::vector<Option> options_;
  std::int64_t most_ranks_;
  std::int64_t pair_count_ = 0;
  // pair_start_[i][j] for i < j: number of the pair of the first values of options i and j.
  std::vector<std::vector<std::int64_t>> pair_start_;
  std::vector<Choice> witnesses_;
};

}  // namespace bev::test
