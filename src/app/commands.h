// The commands of the program. Each returns the process's exit code or throws.
#pragma once

#include "app/help.h"
#include "app/options.h"

namespace bev {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitInput = 2;
inline constexpr int kExitMismatch = 3;
inline constexpr int kExitSignalBase = 128;

// See Command::run. Presets, model folders and rules are the command's business.
int run_train(CommandConfig& config, const FieldList& fields, Options& options);
int run_score(CommandConfig& config, const FieldList& fields, Options& options);
int run_generate(CommandConfig& config, const FieldList& fields, Options& options);
int run_convert(CommandConfig& config, const FieldList& fields, Options& options);
int run_checkpoint_verify(CommandConfig& config, const FieldList& fields, Options& options);
int run_checkpoint_inspect(CommandConfig& config, const FieldList& fields, Options& options);
int run_checkpoint_diff(CommandConfig& config, const FieldList& fields, Options& options);
int run_verify(CommandConfig& config, const FieldList& fields, Options& options);
int run_schedule(CommandConfig& config, const FieldList& fields, Options& options);
int run_preprocess(CommandConfig& config, const FieldList& fields, Options& options);
int run_tokenize(CommandConfig& config, const FieldList& fields, Options& options);
int run_tokenizer_train(CommandConfig& config, const FieldList& fields, Options& options);
int run_plan_schedule(CommandConfig& config, const FieldList& fields, Options& options);
int run_data_samples(CommandConfig& config, const FieldList& fields, Options& options);
int run_data_info(CommandConfig& config, const FieldList& fields, Options& options);
int run_data_show(CommandConfig& config, const FieldList& fields, Options& options);
int run_data_merge(CommandConfig& config, const FieldList& fields, Options& options);

// The model's shape comes from --hf-model, --preset or flags; flags change a preset, not a folder.
void choose_model(RunConfig& run, const FieldList& fields, Options& options);

}  // namespace bev
