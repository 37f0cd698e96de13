// The samples of one data-parallel rank, micro-batch by micro-batch, read by threads ahead of their
// use:
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
  std::int64_t threads = 0;  // 0: next() reads
  std::int64_t factor = 2;   // micro-batches that may wait for each thread
};

class SampleReader {
 public:
  // Begins with the iteration at consumed_samples.
  SampleReader(SampleSource source, std::int64_t consumed_samples, const ReadAhead& ahead);
  // At any moment; waits for the micro-batches that are being read.
  ~SampleReader();
  SampleReader(const SampleReader&) = delete;
  SampleReader& operator=(const SampleReader&) = delete;

  // The samples of the next micro-batch; the same ones whatever the number of threads. What went
  // wrong while reading them is thrown here, when their turn comes, and every time after that.
  std::vector<TokenSample> next();

 private:
  struct Threads;
  // A micro-batch of the iteration at consumed_samples.
  struct Place {
    std::int64_t consumed_samples = 0, micro_batch = 0;
  };
  std::vector<TokenSample> read(const Place& place) const;
  Place following(const Place& place) const;

  SampleSource source_;
  Place place_;  // not yet handed out for reading
  std::unique_ptr<Threads> threads_;
};

}  // namespace bev
