// The complete configuration of a training run, and the rules that span its sections.
#pragma once

#include <string>
#include <vector>

#include "models/base_quantization.h"
#include "models/config.h"
#include "models/fp8_config.h"
#include "optim/config.h"
#include "parallel/config.h"
#include "train/checkpoint_config.h"
#include "train/config.h"

namespace bev {

class FieldList;
class Options;

struct RunConfig {
  ModelConfig model;
  ParallelConfig parallel;
  OptimConfig optim;
  BatchConfig batch;
  DataConfig data;
  LoaderConfig loader;
  PrecisionConfig precision;
  Fp8Config fp8;
  BaseQuantization base;
  TrainConfig train;
  LogConfig log;
  ProfileConfig profile;
  CheckpointConfig checkpoint;
  RuntimeConfig runtime;

  // Sections model, rope-scaling, parallel, recompute, optimizer, batch, data, loader, precision,
  // fp8, training, checkpointing, logging, profiling, runtime. The list points into this object.
  void fields(FieldList& list);

  // Each fills in derived values and returns all broken rules. Call one of them once, after presets
  // and flags; set parallel.processes before if there is a launcher.
  std::vector<std::string> resolve();           // everything, for training
  std::vector<std::string> resolve_schedule();  // length, batch and optimizer; needs no model
  std::vector<std::string> resolve_layout();    // model, ranks and precision; needs no data
};

// Refuses layouts that share out batches of training, for commands that answer row by row.
std::vector<std::string> row_problems(const ParallelConfig& parallel);
// Flags that contradict the model of --hf-model, which `list` refers to and which they have not yet
// overridden; its values are restored. Dropout, initialisation, positions, RoPE scaling and expert
// load balancing may be changed; nothing else may. Experts and family of an upcycled model are
// its own.
std::vector<std::string> model_conflicts(const Options& options, const FieldList& list,
                                         const ModelConfig& model, bool upcycled);

}  // namespace bev
