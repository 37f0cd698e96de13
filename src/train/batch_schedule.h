// How many samples an iteration takes and how many micro-batches that is on a rank, as a function
// of the samples consumed: constant, stepped by tokens, the classic ramp-up, or as a replay lists
// them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace bev {

struct BatchSpec {
  std::int64_t micro_batch_size = 1;
  std::int64_t data_parallel_size = 1;
  std::int64_t global_batch_size = 0;  // 0: micro_batch_size * data_parallel_size
  // "TOKENS:BATCH ...", K/M/B/T allowed, as in "0:768 250B:1536"; instead of global_batch_size.
  std::string step_schedule = {};
  std::int64_t seq_length = 1;            // turns the step schedule's tokens into samples
  std::vector<std::int64_t> rampup = {};  // start, increment, samples; empty: none
  bool decrease_if_needed = false;        // round down to what the ranks can divide
  // Samples of each batch of a replay, in order, instead of all of the above but the micro-batch;
  // ranks need not divide them, and the last repeats.
  std::vector<std::int64_t> replay = {};
};

struct BatchSize {
  std::int64_t global = 0;         // as the schedule says
  std::int64_t running = 0;        // as trained; below global only with decrease_if_needed
  std::int64_t micro_batches = 0;  // per data-parallel rank; of a replay the last may be short
};

// All that is wrong with a specification for a run that starts at from_samples, with what would
// work. Batch sizes that the run has already passed need not divide.
std::vector<std::string> batch_problems(const BatchSpec& spec, std::int64_t from_samples = 0);

class BatchSchedule {
 public:
  // Error of kind config with all problems but the division of sizes, which at() checks.
  explicit BatchSchedule(const BatchSpec& spec);

  // Of the iteration that starts at consumed_samples; throws when the ranks cannot divide it.
  BatchSize at(std::int64_t consumed_samples) const;
  std::int64_t micro_batch_size() const { return spec_.micro_batch_size; }

  // Samples consumed by the first `iterations` iterations.
  std::int64_t samples_after(std::int64_t iterations) const;
  // Whole iterations that `samples` samples suffice for.
  std::int64_t iterations_within(std::int64_t samples) const;

  // From this many consumed samples on, this global batch size.
  struct Step {
    std::int64_t from_samples = 0;
    std::int64_t global_batch_size = 0;
  };
  const std::vector<Step>& steps() const { return steps_; }

 private:
  BatchSpec spec_;
  std::vector<Step> steps_;
};

}  // namespace bev
