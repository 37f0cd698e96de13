// A sequence of a request inside of the engine.
#pragma once

#include <memory>
#include <optional>

#include "infer/request.h"
#include "infer/stop_texts.h"

namespace bev {

struct ActiveRequest;

enum class SequenceState : std::uint8_t { kWaiting, kRunning, kFinished };

struct Sequence {
  std::shared_ptr<ActiveRequest> request;
  SequenceResult result;
  SequenceState state = SequenceState::kWaiting;
  std::vector<std::int32_t> tokens;  // prompt and output, as far as the host knows it
  std::int64_t prompt_tokens = 0;
  // Tokens whose selection was enqueued, but whose value the host does not know yet (0 or 1).
  std::int64_t in_flight = 0;
  std::int64_t computed = 0;  // tokens whose keys and values are in the blocks, or enqueued
  std::vector<BlockId> blocks;
  std::int64_t known_blocks = 0;  // whose content the pool knows
  std::int32_t slot = -1;
  std::optional<StopTexts> stop_texts;
  bool counts_are_set = false;  // the row of token counts of its slot is its own

  std::int64_t length() const { return std::ssize(tokens) + in_flight; }
  std::int64_t output_tokens() const { return length() - prompt_tokens; }
  const Request& asked() const;
  // No further token will be selected.
  bool at_end() const;
};

struct ActiveRequest {
  RequestId id = 0;
  Request asked;
  std::int64_t arrival = 0;
  bool started = false;
  RequestResult result;
  std::int64_t unfinished = 0;  // sequences
  // Beam search: the live beams in the order of the search, and the logits of those that were
  // computed since it advanced.
  std::unique_ptr<BeamSearch> search;
  std::vector<Sequence*> beams;
  std::vector<std::vector<double>> beam_logits;
};

inline const Request& Sequence::asked() const { return request->asked; }
inline bool Sequence::at_end() const { return output_tokens() >= asked().max_new_tokens; }

}  // namespace bev
