// Samples completions with the inference engine, on the parameters that the run trains. Random
// numbers belong to the prompt, the place in its group and the place of the token: a completion
// that is sampled in several parts with one version of the weights is that sampled at once.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "parallel/engine.h"
#include "rl/rollout.h"
#include "rl/rollout_parts.h"

namespace bev {

class RolloutSampler {
 public:
  // Both must outlive this object.
  RolloutSampler(Engine& engine, const RolloutParts& parts) : engine_(engine), parts_(parts) {}

  // The rows of a group before anything is sampled.
  std::vector<SampledRow> fresh_group(std::int64_t place) const;
  // Samples up to `most` tokens more of each row that has no end. The groups of world rank 0 count;
  // those of other ranks are not looked at. Collective.
  void extend(std::span<std::vector<SampledRow>> groups, std::int64_t most);

 private:
  // A part of a group that one request completes.
  struct Part {
    std::vector<SampledRow*> rows;
    Request request;
  };

  bool first() const { return engine_.model().mesh().world().rank() == 0; }
  std::int64_t room(const SampledRow& row) const;
  Request request_of(const SampledRow& row, std::int64_t rows, std::int64_t most) const;
  std::vector<Part> parts_of(std::span<std::vector<SampledRow>> groups, std::int64_t most) const;
  void share(std::vector<Request>& requests);
  void take(const SequenceResult& result, SampledRow& row) const;

  Engine& engine_;
  const RolloutParts& parts_;
};

}  // namespace bev
