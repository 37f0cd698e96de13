// Prefetching reader of the samples of one data-parallel rank, micro-batch by micro-batch:
//
//   batch schedule -> next micro-batch -> order -> dataset -> slot -> next()
//                     (one at a time)     (any thread)        (in order)
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "data/dataset.h"
#include "data/sample_order.h"
#include "train/batch_schedule.h"

namespace bev {

struct SampleSource {
  std::shared_ptr<const Dataset> data;
  std::shared_ptr<const SampleOrder> order;
  BatchSchedule batches;
  std::int64_t rank = 0, ranks = 1;  // data-parallel
};

struct ReadAhead {
  std::int64_t threads = 0;  // 0: next() reads itself
  std::int64_t factor = 2;   // micro-batches buffered per thread
};

class SampleReader {
 public:
  // Starts with the iteration at consumed_samples.
  SampleReader(SampleSource source, std::int64_t consumed_samples, const ReadAhead& ahead);
  // May be called at any time; waits for the micro-batches being read.
  ~SampleReader();
  SampleReader(const SampleReader&) = delete;
  SampleReader& operator=(const SampleReader&) = delete;

  // Samples of the next micro-batch, independent of the number of threads. An error while reading
  // them is thrown here when their turn comes, and by every later call.
  std::vector<TokenSample> next();

 private:
  struct Threads;
  // One micro-batch of the iteration at consumed_samples.
  struct ReadPosition {
    std::int64_t consumed_samples = 0, micro_batch = 0;
  };
  std::vector<TokenSample> read(const ReadPosition& place) const;
  // Indices of a micro-batch of an iteration, counted over all ranks.
  std::vector<std::int64_t> indices_of(std::int64_t consumed_samples, std::int64_t block) const;
  ReadPosition following(const ReadPosition& place) const;

  SampleSource source_;
  ReadPosition place_;  // next to be read
  std::unique_ptr<Threads> threads_;
};

}  // namespace bev
