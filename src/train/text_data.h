// Training on text: it is made into token files once, which a cache folder keeps, and then read as
// such.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bridge/hf_model.h"
#include "tokenizer/tokenizer.h"
#include "train/config.h"
#include "train/stop_signal.h"

namespace bev {

// The tokenizer of a run: --tokenizer, else that of the model's folder, else bytes for --text; null
// when there is none. Sets the configuration's tokenizer and vocabulary, and its end of document
// unless that is given.
std::unique_ptr<Tokenizer> choose_tokenizer(DataConfig& config, const std::string& hf_model);

// Makes the token files of --text, or finds them; the configuration has them as --data-path then.
// Any number of processes may do it at once. False when the signal stopped it.
bool prepare_text(DataConfig& config, const Tokenizer& tokenizer, const StopSignal& stop);

// What an exported model's folder needs so that it can be opened with this tokenizer.
std::vector<ExportFile> tokenizer_export_files(const std::string& tokenizer);

}  // namespace bev
