#include "tests/checkpoint/saved_run.h"

#include <filesystem>

#include "backend/cpu/cpu_kernels.h"
#include "base/error.h"
#include "base/file.h"
#include "checkpoint/reader.h"
#include "checkpoint/restore.h"
#include "posttrain/upcycling.h"
#include "verify/layouts.h"

namespace bev::test {

namespace {

constexpr std::int64_t kGlobalBatch = 8, kLength = 11;

ParallelConfig parallel_config(const std::string& layout) {
  ParallelConfig parallel;
  if (!layout.empty()) parallel = parse_layouts(layout, {}).at(0);
  std::vector<std::string> problems = parallel.resolve();
  BEV_CHECK(problems.empty(), ErrorKind::kConfig, join(problems, "\n"));
  return parallel;
}

void load(Engine& engine, const SavedRun& run) {
  if (run.granularity > 0) {
    return upcycle(engine, run.granularity, {.load = run.load});
  }
  CheckpointReader reader(step_folder(run.load, run.first - 1));
  restore_tensors(engine, reader, run.with_optimizer);
  const TrainingState& state = reader.manifest().state;
  engine.resume(run.with_optimizer ? state.updates : 0, static_cast<std::uint64_t>(state.seed));
}

SavedAnswer train_rank(World& world, const SavedRun& run, const ParallelConfig& parallel,
                       StagingPool& pool, Storage& storage) {
  EngineOptions options;
  options.model = run.model;
  options.parallel = parallel;
  options.optim = run.optim;
  options.dtype = run.dtype;
  options.fp8 = run.fp8;
  options.deterministic = true;
  Engine engine(world, run.kernels ? *run.kernels : cpu_kernels(), options);
  if (!run.load.empty()) load(engine, run);
  SavedAnswer answer;
  auto step = [&](std::int64_t iteration) {
    StepSamples samples = random_samples(run.model.vocab_size, kGlobalBatch, kLength,
                                         77 + static_cast<std::uint64_t>(iteration));
    std::vector<MicroBatch> batches =
        rank_micro_batches(engine.model().ctx(), samples, 1, mtp_spec(run.model));
    answer.losses.push_back(engine.train_step(batches, {iteration, 1e-2, 0.1, 1.0, 1.0}).loss);
  };
  for (std::int64_t i = run.first; i <= run.last; ++i) step(i);
  if (run.save.empty()) return answer;
  Saver saver(
      engine, storage, pool,
      {.folder = run.save, .with_optimizer = run.with_optimizer, .least_piece_elements = 16});
  if (run.steps_while_saving > 0) saver.make_staging();
  TrainingState state;
  state.iteration = run.last;
  state.updates = engine.updates();
  state.seed = static_cast<std::int64_t>(options.seed);
  saver.begin(state);
  for (std::int64_t i = 1; i <= run.steps_while_saving; ++i) step(run.last + i);
  answer.saved = saver.finish();
  return answer;
}

}  // namespace

SavedAnswer train(const SavedRun& run) {
  SavedAnswer answer;
  StagingPool pool(run.staging_bytes);
  std::unique_ptr<Storage> disk = make_disk_storage();
  ParallelConfig parallel = parallel_config(run.layout);
  run_thread_ranks(static_cast<int>(mesh_shape(parallel).size()), {60}, [&](World& world) {
    SavedAnswer mine = train_rank(world, run, parallel, pool, run.storage ? *run.storage : *disk);
    if (world.rank() == 0) answer = std::move(mine);
  });
  return answer;
}

NamedTensors saved_tensors(const std::string& folder, std::int64_t iteration) {
  CheckpointReader reader(step_folder(folder, iteration));
  NamedTensors tensors;
  for (const auto& [name, tensor] : reader.manifest().tensors) {
    std::vector<double>& values = tensors[name];
    values.resize(static_cast<std::size_t>(tensor.shape.numel()));
    reader.read(name, whole_box(tensor.shape), Dtype::kF64, values.data());
  }
  return tensors;
}

namespace {
std::map<std::string, std::string> all_files(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    std::string path = entry.path().string();
    files[path.substr(folder.size())] = read_file(path);
  }
  return files;
}
}  // namespace

std::vector<std::string> differing_files(const std::string& one, const std::string& other) {
  std::map<std::string, std::string> first = all_files(one), second = all_files(other);
  std::vector<std::string> names;
  for (const auto& [name, content] : first) {
    if (!second.contains(name) || second[name] != content) names.push_back(name);
  }
  for (const auto& [name, content] : second) {
    if (!first.contains(name)) names.push_back(name);
  }
  return names;
}

}  // namespace bev::test
