// The flags that say how sequences are generated, and the requests that they make.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "infer/request.h"

namespace bev {

class FieldList;
class Options;
struct InferenceOptions;

// Temperature, filters and penalties.
void add_sampling_fields(FieldList& list, SamplingOptions& sampling);

struct GenerationFlags {
  std::int64_t max_new_tokens = 64, min_new_tokens = 0;
  SamplingOptions sampling;  // without the seed and the biases
  std::string logit_bias;    // JSON file {"token id": bias}
  std::string stop;
  std::vector<std::int64_t> stop_token_ids;
  bool ignore_eos = false;
  std::int64_t n = 1;
  std::int64_t num_beams = 1, num_return_sequences = 1;
  double length_penalty = 1;
  EarlyStopping early_stopping = EarlyStopping::kFalse;
  std::int64_t no_repeat_ngram_size = 0;
  std::int64_t forced_bos_token_id = -1, forced_eos_token_id = -1;  // -1: those of the model

  void fields(FieldList& list);
  // Flags that contradict each other.
  std::vector<std::string> problems() const;
  // Warns of flags that have no effect.
  void warn(const Options& options) const;

  bool beams() const { return num_beams > 1; }
  // A request without prompt. `files`: folder with the model's generation settings, "" for none.
  Request request(const std::string& files, std::uint64_t seed) const;
};

// The engine's flags, for all commands that generate.
struct EngineFlags {
  std::int64_t max_seqs = 256;
  std::int64_t max_step_tokens = 8192;
  std::int64_t block_tokens = 64;
  std::int64_t kv_cache_tokens = 0;
  bool prefix_cache = true;

  void fields(FieldList& list);
  std::vector<std::string> problems() const;
  InferenceOptions options() const;
};

}  // namespace bev
