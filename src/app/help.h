// The commands as data, and the texts made from them: `bevatron help` and docs/flags.md.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "app/command_options.h"
#include "app/masked_samples.h"
#include "app/run_config.h"
#include "comm/launch.h"
#include "data/preprocess_config.h"

namespace bev {

// Everything that any command can be told. A command lists the parts it reads.
struct CommandConfig {
  Launch launch;  // how this process was started; not a flag
  RunConfig run;
  ScoreOptions score;
  GenerateOptions generate;
  ConvertOptions convert;
  CheckpointOptions checkpoint;
  ScheduleOptions schedule;
  PlanScheduleOptions plan_schedule;
  VerifyOptions verify;
  DataSamplesOptions data_samples;
  MaskedSamplesOptions masked_samples;
  DataInfoOptions data_info;
  DataShowOptions data_show;
  DataMergeOptions data_merge;
  TokenizerTrainOptions tokenizer_train;
  PreprocessConfig preprocess;
  TokenizeOptions tokenize;
};

struct Command {
  std::string_view name;      // one word or two
  std::string_view summary;   // one line
  std::string_view examples;  // one per line
  void (*fields)(CommandConfig& config, FieldList& list);
  // Returns the exit code; `options` holds what was given, `config` has it applied.
  int (*run)(CommandConfig& config, const FieldList& fields, Options& options);
  std::string_view words = {};  // the flag that words without one belong to
};

std::span<const Command> commands();
// Error of kind config that suggests the nearest name.
const Command& find_command(std::string_view name);
// The command that the first one or two arguments name.
const Command& find_command(std::span<const std::string> arguments);
std::size_t word_count(const Command& command);

std::string help_text();
std::string help_text(const Command& command);
// docs/flags.md: a table for each section.
std::string flags_markdown();

}  // namespace bev
