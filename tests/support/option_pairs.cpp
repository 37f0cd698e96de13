#include "tests/support/option_pairs.h"

#include <algorithm>

#include "base/divide.h"
#include "base/text.h"
#include "parallel/pipeline/pipeline_layout.h"

namespace bev::test {

OptionSpace::OptionSpace(std::vector<Option> options, std::int64_t most_ranks)
    : options_(std::move(options)), most_ranks_(most_ranks) {
  pair_start_.resize(options_.size(), std::vector<std::int64_t>(options_.size()));
  for (std::size_t i = 0; i < options_.size(); ++i) {
    for (std::size_t j = i + 1; j < options_.size(); ++j) {
      pair_start_[i][j] = pair_count_;
      pair_count_ +=
          static_cast<std::int64_t>(options_[i].values.size() * options_[j].values.size());
    }
  }
  find_witnesses();
}

std::pair<RunConfig, std::vector<std::string>> OptionSpace::configure(const Choice& choice) const {
  RunConfig run;
  for (std::size_t i = 0; i < options_.size(); ++i) {
    options_[i].values[static_cast<std::size_t>(choice[i])].apply(run);
  }
  std::vector<std::string> problems = run.resolve_layout();
  std::int64_t block = run.batch.micro_batch_size * run.parallel.data_parallel_size;
  std::int64_t micro_batches = ceil_div(run.batch.global_batch_size, block);
  if (problems.empty()) {
    problems = pipeline_problems(run.model.num_layers, run.parallel, std::span(&micro_batches, 1));
  }
  return {std::move(run), std::move(problems)};
}

bool OptionSpace::legal(const Choice& choice) const {
  auto [run, problems] = configure(choice);
  return problems.empty() && run.parallel.ranks <= most_ranks_;
}

std::string OptionSpace::text(const Choice& choice) const {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < options_.size(); ++i) {
    names.push_back(options_[i].values[static_cast<std::size_t>(choice[i])].name);
  }
  return join(names, ", ");
}

OptionSpace::Pair OptionSpace::pair_at(std::int64_t number) const {
  for (std::size_t i = 0; i < options_.size(); ++i) {
    for (std::size_t j = i + 1; j < options_.size(); ++j) {
      auto width = static_cast<std::int64_t>(options_[j].values.size());
      std::int64_t at = number - pair_start_[i][j];
      if (at < width * static_cast<std::int64_t>(options_[i].values.size())) {
        return {i, j, at / width, at % width};
      }
    }
  }
  return {};
}

std::string OptionSpace::text_of_pair(std::int64_t number) const {
  Pair pair = pair_at(number);
  return concat(options_[pair.i].values[static_cast<std::size_t>(pair.a)].name, " with ",
                options_[pair.j].values[static_cast<std::size_t>(pair.b)].name);
}

std::vector<std::int64_t> OptionSpace::pairs_of(const Choice& choice) const {
  std::vector<std::int64_t> pairs;
  for (std::size_t i = 0; i < options_.size(); ++i) {
    for (std::size_t j = i + 1; j < options_.size(); ++j) {
      auto width = static_cast<std::int64_t>(options_[j].values.size());
      pairs.push_back(pair_start_[i][j] + choice[i] * width + choice[j]);
    }
  }
  return pairs;
}

// Visits every choice. One whose pairs all have a witness adds nothing.
void OptionSpace::find_witnesses() {
  witnesses_.resize(static_cast<std::size_t>(pair_count_));
  Choice choice(options_.size(), 0);
  for (bool more = true; more;) {
    std::vector<std::int64_t> pairs = pairs_of(choice);
    auto open = [&](std::int64_t pair) {
      return witnesses_[static_cast<std::size_t>(pair)].empty();
    };
    if (std::ranges::any_of(pairs, open) && legal(choice)) {
      for (std::int64_t pair : pairs) {
        if (open(pair)) witnesses_[static_cast<std::size_t>(pair)] = choice;
      }
    }
    more = false;
    for (std::size_t i = 0; i < choice.size() && !more; ++i) {
      more = ++choice[i] < static_cast<std::int64_t>(options_[i].values.size());
      if (!more) choice[i] = 0;
    }
  }
}

// Changes one option at a time, except those of the fixed pair, to the value that covers the most
// new pairs.
Choice OptionSpace::improved(Choice choice, const Pair& fixed,
                             const std::vector<bool>& covered) const {
  auto gain = [&](const Choice& one) {
    return std::ranges::count_if(
        pairs_of(one), [&](std::int64_t pair) { return !covered[static_cast<std::size_t>(pair)]; });
  };
  std::ptrdiff_t most = gain(choice);
  for (std::size_t step = 0; step < 2 * options_.size(); ++step) {
    std::size_t k = (fixed.j + step) % options_.size();
    if (k == fixed.i || k == fixed.j) continue;
    Choice varied = choice;
    for (std::size_t value = 0; value < options_[k].values.size(); ++value) {
      varied[k] = static_cast<std::int64_t>(value);
      if (gain(varied) <= most || !legal(varied)) continue;
      most = gain(varied);
      choice = varied;
    }
  }
  return choice;
}

std::vector<Choice> OptionSpace::cover() const {
  std::vector<bool> covered(witnesses_.size());
  std::vector<Choice> runs;
  for (std::size_t pair = 0; pair < covered.size(); ++pair) {
    if (covered[pair] || witnesses_[pair].empty()) continue;
    runs.push_back(improved(witnesses_[pair], pair_at(static_cast<std::int64_t>(pair)), covered));
    for (std::int64_t at : pairs_of(runs.back())) covered[static_cast<std::size_t>(at)] = true;
  }
  return runs;
}

}  // namespace bev::test
