#include "app/export_files.h"

#include <algorithm>

#include "base/text.h"
#include "train/text_data.h"

namespace bev {

namespace {
constexpr const char* kGenerationConfig = "generation_config.json";
}  // namespace

std::vector<ExportFile> export_files(const RunConfig& run, Dtype dtype) {
  std::vector<ExportFile> files;
  files.push_back({"config.json", export_config(run.model, dtype, run.train.hf_model)});
  if (!run.train.hf_model.empty()) {
    for (ExportFile& file : companion_files(run.train.hf_model)) files.push_back(std::move(file));
  }
  if (!run.data.tokenizer.empty() && run.data.tokenizer != run.train.hf_model) {
    for (ExportFile& file : tokenizer_export_files(run.data.tokenizer)) {
      std::erase_if(files, [&](const ExportFile& other) { return other.name == file.name; });
      files.push_back(std::move(file));
    }
  }
  // The config.json of a new model has no EOS token.
  bool says_end = !run.train.hf_model.empty() ||
                  std::ranges::find(files, kGenerationConfig, &ExportFile::name) != files.end();
  if (!says_end && run.data.eod_id >= 0) {
    files.push_back({kGenerationConfig, concat("{\"eos_token_id\": ", run.data.eod_id, "}\n")});
  }
  return files;
}

}  // namespace bev
