// Options of a run and their values, and a short list of runs in which every two values meet that
// can legally occur together. Where two features break each other, such a run breaks.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "app/run_config.h"

namespace bev::test {

// A choice of one value for each option, by index.
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
  // Legal is what breaks no rule of the configuration, with at most `most_ranks` ranks.
  // The values of later options are applied after those of earlier ones.
  OptionSpace(std::vector<Option> options, std::int64_t most_ranks);

  // The configuration of a choice, resolved, and all that is wrong with it.
  std::pair<RunConfig, std::vector<std::string>> configure(const Choice& choice) const;
  std::string text(const Choice& choice) const;
  std::string text_of_pair(std::int64_t pair) const;

  // All pairs of values of two options; a pair's number is its index.
  std::int64_t pair_count() const { return pair_count_; }
  std::vector<std::int64_t> pairs_of(const Choice& choice) const;
  // A legal choice with the pair, for each that has one, found by looking at the whole space;
  // otherwise an empty one.
  const std::vector<Choice>& witnesses() const { return witnesses_; }
  // Legal choices that together have every pair with a witness; deterministic.
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
