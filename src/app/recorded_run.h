// A run that goes on, or whose model is used, without the flags of its command. Its folder has them
// in run.json (run_record.h), and in model_files tokenizer, chat template and end tokens as an
// export would.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "app/options.h"
#include "app/run_config.h"
#include "app/run_record.h"
#include "checkpoint/reader.h"

namespace bev {

inline constexpr char kModelFilesName[] = "model_files";

// The step that --load, --ckpt-step name: a folder with a manifest; nullopt if there is none.
std::optional<std::string> step_to_read(const CheckpointConfig& config);

// Whether --load also gives the model, data and settings: no flag describes a model, or
// --use-checkpoint-args is given.
bool goes_on_alone(const CheckpointConfig& config, const Options& options);

// --load may name the folder of one step; it becomes that of its run, and --ckpt-step the step.
void accept_step_folder(const CheckpointConfig& config, const FieldList& fields, Options& options);

// Adds the settings of the run of --load to the options, where no flag is given; its folder becomes
// --save. If --save names another folder, reports and exports of the run are left alone. With
// --finetune only its tokenizer is taken. Throws Error(kConfig) if there is no checkpoint,
// Error(kInput) if it records nothing. Returns the file that they are from.
std::string take_recorded_settings(const CheckpointConfig& config, const FieldList& fields,
                                   Options& options);
// Sets the fields of the model to those of the checkpoint, then those that flags give.
void take_recorded_model(const CheckpointConfig& config, const FieldList& fields,
                         const Options& options);
// The same for the settings of its adapters.
void take_recorded_adapters(const CheckpointConfig& config, const FieldList& fields,
                            const Options& options);
// The model of a checkpoint.
ModelConfig recorded_model(const CheckpointReader& reader);

// The tokenizer of the run that saved the checkpoint, or its copy in the run's folder if it is no
// longer there; "" if the run had none.
std::string recorded_tokenizer(const CheckpointReader& reader);
// Folder with the tokenizer of the run that saved the step; "" if it left none.
std::string recorded_files(const std::string& step_folder);

}  // namespace bev
