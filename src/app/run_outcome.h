// The end of a training run: the plot of its losses and the summary on stdout.
#pragma once

#include "app/run_config.h"
#include "train/trainer.h"

namespace bev {

struct RunOutcome : TrainOutcome {
  bool trained = false;   // the run has ended, whatever became of later work
  bool drawn = false;     // --loss-svg is written
  bool exported = false;  // --export-hf is written
};

// Writes --loss-svg; returns false if it is not. A run that has trained nothing leaves the plot of
// an earlier one alone.
bool draw_losses(const RunConfig& run, const TrainOutcome& outcome);
void print_summary(const RunConfig& run, const RunOutcome& outcome);

}  // namespace bev
