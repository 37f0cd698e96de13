// Text to token files, as Megatron's preprocess_data.py: PREFIX_KEY_document.bin and .idx for every
// key, byte for byte the same for the same ids.
//
// The input is cut into parts. Each part is written to PREFIX.parts-HASH/ and stays there until all
// are done; then they are joined and shown under their names at once. The hash covers everything
// the output depends on, so a run that was interrupted goes on where it was when it is started
// again.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/preprocess_config.h"
#include "tokenizer/tokenizer.h"

namespace bev {

struct PreprocessProgress {
  std::int64_t input_bytes = 0;  // of all files; 0 where one is a pipe
  std::int64_t bytes = 0;        // done, by this run and before
  std::int64_t documents = 0;    // of this run
  std::int64_t part = 0, parts = 1;
};

// Is told how it goes, and may end it.
class PreprocessObserver {
 public:
  virtual ~PreprocessObserver() = default;
  // Often; the first time before anything is done.
  virtual void advanced(const PreprocessProgress& progress) = 0;
  // "FILE:LINE: why" of a record that is left out.
  virtual void skipped(const std::string& what) = 0;
  // Whether to stop as soon as possible.
  virtual bool stop() const = 0;
};

struct PreprocessOutput {
  std::string prefix;
  std::int64_t documents = 0, sequences = 0, tokens = 0;
};

struct PreprocessResult {
  bool stopped = false;  // by the observer: there are no outputs yet
  std::int64_t parts = 0, parts_done = 0;
  std::int64_t skipped = 0;               // records, of all parts
  std::vector<PreprocessOutput> outputs;  // one for each key
};

// Error(kInput) naming file and line at a bad record, unless those are to be skipped; Error(kIo)
// when another run writes the same prefix. On an error nothing new is seen under the final names.
PreprocessResult preprocess(const PreprocessConfig& config, const Tokenizer& tokenizer,
                            PreprocessObserver& observer);

// The same into a folder that keeps results: made once and found again, by any number of processes
// that may ask at the same time; for one key. Nothing when the observer stopped it.
std::optional<std::string> preprocess_once(PreprocessConfig config, const std::string& folder,
                                           const Tokenizer& tokenizer,
                                           PreprocessObserver& observer);

}  // namespace bev
