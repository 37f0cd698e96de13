// Text to token files, like Megatron's preprocess_data.py: PREFIX_KEY_document.bin and .idx for
// every key, byte-equal for equal ids.
//
// The input is cut into parts. Each part is written to PREFIX.parts-HASH/ and stays there until all
// are done; then they are concatenated and renamed to their final names. The hash covers everything
// the output depends on, so an interrupted run resumes from its finished parts when restarted.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/preprocess/preprocess_config.h"
#include "tokenizer/tokenizer.h"

namespace bev {

struct PreprocessProgress {
  std::int64_t input_bytes = 0;  // of all files; 0 if one is a pipe
  std::int64_t bytes = 0;        // processed by this run and earlier ones
  std::int64_t documents = 0;    // of this run
  std::int64_t part = 0, parts = 1;
};

// Receives progress and may stop the run.
class PreprocessObserver {
 public:
  virtual ~PreprocessObserver() = default;
  // Called once, with the files to read and what was left out.
  virtual void found(const TextInputs& inputs) = 0;
  // Called often; the first time before any work.
  virtual void advanced(const PreprocessProgress& progress) = 0;
  // Called with "FILE:LINE: why" for each skipped record.
  virtual void skipped(const std::string& what) = 0;
  // Returns true to stop as soon as possible.
  virtual bool stop() const = 0;
};

struct PreprocessOutput {
  std::string prefix;
  std::int64_t documents = 0, sequences = 0, tokens = 0;
};

struct PreprocessResult {
  bool stopped = false;  // by the observer; there are no outputs yet
  std::int64_t parts = 0, parts_done = 0;
  std::int64_t skipped = 0;               // skipped records of all parts
  std::vector<PreprocessOutput> outputs;  // one per key
};

// Throws Error(kInput) naming file and line at a bad record, unless bad records are skipped;
// Error(kIo) if another run writes the same prefix. On error nothing new appears under the final
// names.
PreprocessResult preprocess(const PreprocessConfig& config, const Tokenizer& tokenizer,
                            PreprocessObserver& observer);

// Same, for one key, with results cached in a folder: made once and reused, also by processes that
// ask at the same time. Returns nullopt if the observer stopped it.
std::optional<std::string> preprocess_once(PreprocessConfig config, const std::string& folder,
                                           const Tokenizer& tokenizer,
                                           PreprocessObserver& observer);

}  // namespace bev
