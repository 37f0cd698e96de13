// Trains small models on thread ranks, with checkpoints before and after.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "checkpoint/saver.h"
#include "tests/support/layouts.h"

namespace bev::test {

struct SavedRun {
  ModelConfig model = tiny_gpt();
  std::string layout = "";  // syntax of parse_layouts; "": one rank
  OptimConfig optim = {};
  Dtype dtype = Dtype::kF64;
  std::int64_t first = 1, last = 3;  // iterations
  std::string load = {};             // folder of the checkpoint of iteration first - 1
  std::string save = {};             // folder for the checkpoint of the last iteration
  bool with_optimizer = true;        // for both
  std::int64_t granularity = 0;      // not 0: upcycles a dense checkpoint
  Storage* storage = nullptr;        // null: the disk
  const Kernels* kernels = nullptr;  // null: CPU
  std::size_t staging_bytes = 3 * kBlockBytes;
  std::int64_t steps_while_saving = 0;  // further iterations trained during the save
  Fp8Config fp8 = {};
};

struct SavedAnswer {
  std::vector<double> losses;
  SaveOutcome saved;
};
SavedAnswer train(const SavedRun& run);

// All tensors of a saved iteration, as doubles.
NamedTensors saved_tensors(const std::string& folder, std::int64_t iteration);
// Paths whose contents differ between the two folders.
std::vector<std::string> differing_files(const std::string& one, const std::string& other);

}  // namespace bev::test
