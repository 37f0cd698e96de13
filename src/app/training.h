// A training run from its configuration to the exported model: what `train` does, and `rl`, whose
// batches are made while it runs.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "app/command.h"
#include "app/run_config.h"
#include "app/run_outcome.h"
#include "parallel/engine.h"
#include "tokenizer/tokenizer.h"
#include "train/step_source.h"

namespace bev {

// Makes the batches of a run instead of a data set. One object serves the ranks of a process.
class BatchMaker {
 public:
  virtual ~BatchMaker() = default;
  // Fills in what follows from other settings; returns all broken rules. Called before the
  // configuration is resolved.
  virtual std::vector<std::string> settle(RunConfig& run) = 0;
  // Called once the configuration is complete and the tokenizer known, before ranks start.
  virtual void prepare(const RunConfig& run, const Tokenizer* tokenizer,
                       const CommandInput& input) = 0;
  // Changes the options of a rank: its objective, say.
  virtual void change(EngineOptions& options) const = 0;
  // The batches of a rank, whose weights are loaded. Collective.
  virtual std::unique_ptr<StepSource> open(Engine& engine) = 0;
  // After a run that has ended, on process 0.
  virtual void finish(const RunOutcome& outcome) = 0;
};

// Runs it and returns the exit code. `maker`: null: the data of the configuration.
int run_training(RunConfig& run, const CommandInput& input, BatchMaker* maker = nullptr);

}  // namespace bev
