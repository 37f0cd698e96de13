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
  std::string layout = "";  // as parse_layouts reads it; "": one rank
  OptimConfig optim = {};
  Dtype dtype = Dtype::kF64;
  std::int64_t first = 1, last = 3;  // iterations
  std::string load = {};             // folder to load the iteration before the first from
  std::string save = {};             // folder to save the last to
  bool with_optimizer = true;        // in both
  std::int64_t granularity = 0;      // not 0: what is loaded is dense, and upcycled with it
  Storage* storage = nullptr;        // the disk's
  const Kernels* kernels = nullptr;  // the CPU's
  std::size_t staging_bytes = 3 * kBlockBytes;
  std::int64_t steps_beside = 0;  // iterations more that are trained while it is saved
  Fp8Config fp8 = {};
};

struct SavedAnswer {
  std::vector<double> losses;
  SaveOutcome saved;
};
SavedAnswer train(const SavedRun& run);

// All tensors of a saved iteration, as doubles.
NamedTensors saved_tensors(const std::string& folder, std::int64_t iteration);
// Paths in the folders whose files are not the same bytes in both.
std::vector<std::string> differing_files(const std::string& one, const std::string& other);

}  // namespace bev::test
