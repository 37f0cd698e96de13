// Batches that are made while a run trains, in place of a data set.
#pragma once

#include <cstdint>
#include <vector>

#include "autograd/metrics.h"
#include "parallel/step.h"

namespace bev {

class StepSource {
 public:
  virtual ~StepSource() = default;
  // This rank's batch of an iteration; iterations come in order. Collective. Called between two
  // steps, when none is in flight.
  virtual StepBatch next(std::int64_t iteration) = 0;
  // What the last batch is reported with besides the metrics of its step; on world rank 0.
  virtual const std::vector<Metric>& metrics() const = 0;
};

}  // namespace bev
