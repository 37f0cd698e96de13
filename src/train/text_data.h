// Training on text: it is tokenized once into token files, which a cache folder keeps.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/stop_signal.h"
#include "bridge/hf_model.h"
#include "tokenizer/tokenizer.h"
#include "train/config.h"

namespace bev {

// Makes --tokenizer of --vocab-file and --merge-file. Throws Error(kConfig) if both are given.
void take_vocabulary_files(DataConfig& config);

// Tokenizer of a run: --tokenizer, else that of the model folder, else bytes for --text; null if
// there is none. Sets tokenizer and vocabulary in the configuration, and the end-of-document token
// unless given.
std::unique_ptr<Tokenizer> choose_tokenizer(DataConfig& config, const std::string& hf_model);

// Creates the token files of --text, or finds them in the cache, and sets them as --data-path. Any
// number of processes may call it at once; one `speaks` about the files that were found. Returns
// false if interrupted by the signal.
bool prepare_text(DataConfig& config, const Tokenizer& tokenizer, const StopSignal& stop,
                  bool speaks);

// Files that an exported model folder needs to use this tokenizer.
std::vector<ExportFile> tokenizer_export_files(const std::string& tokenizer,
                                               const TiktokenOptions& tiktoken);

}  // namespace bev
