// Batch size schedule: global batch size and micro-batches per rank as a function of the consumed
// samples: constant, stepped by tokens, Megatron's ramp-up, or as listed by a replay.
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
  std::int64_t seq_length = 1;            // converts tokens of the step schedule to samples
  std::vector<std::int64_t> rampup = {};  // start, increment, samples; empty: none
  bool decrease_if_needed = false;        // round down to a multiple of micro-batch x dp
  // Samples of each batch of a replay, in order, instead of all fields but the micro-batch size;
  // they need not be divisible among the ranks, and the last one repeats.
  std::vector<std::int64_t> replay = {};
};

struct BatchSize {
  std::int64_t global = 0;         // as scheduled
  std::int64_t running = 0;        // as trained; below global only with decrease_if_needed
  std::int64_t micro_batches = 0;  // per data-parallel rank; in a replay the last may be short
};

// All problems of a specification for a run that starts at from_samples, each with a fix. Batch
// sizes that the run has already passed need not be divisible.
std::vector<std::string> batch_problems(const BatchSpec& spec, std::int64_t from_samples = 0);

class BatchSchedule {
 public:
  // Throws Error(kConfig) with all problems except divisibility, which at() checks.
  explicit BatchSchedule(const BatchSpec& spec);

  // Batch size of the iteration that starts at consumed_samples; throws if not divisible among the
  // ranks.
  BatchSize at(std::int64_t consumed_samples) const;
  std::int64_t micro_batch_size() const { return spec_.micro_batch_size; }

  // Samples consumed by the first `iterations` iterations.
  std::int64_t samples_after(std::int64_t iterations) const;
  // Number of whole iterations covered by `samples` samples.
  std::int64_t iterations_within(std::int64_t samples) const;

  // Global batch size from this many consumed samples on.
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
