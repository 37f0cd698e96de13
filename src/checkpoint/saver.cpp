#include "checkpoint/saver.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "checkpoint/agreement.h"

namespace bev {

namespace {

// A rank's report is a shard entry of the manifest, or this mark followed by the problem.
constexpr char kFailed = '!';

std::uint64_t file_bytes(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 ? static_cast<std::uint64_t>(info.st_size) : 0;
}

}  // namespace

Saver::Saver(Engine& engine, Storage& storage, StagingPool& pool, SaverOptions options,
             const Retention& retention)
    : StepSaver(engine, storage, pool, std::move(options)), retention_(retention) {
  if (world().rank() == 0) {  // before any rank can write
    try {
      remove_unfinished(storage_, options_.folder);
    } catch (const Error& error) {
      log_warning(concat("what an earlier run left stays: ", error.what()));
    }
  }
  run_ = name_run(world());
}

std::string Saver::shard_path(std::int64_t iteration) const {
  return join_path(saving_folder(options_.folder, iteration, run_),
                   fmt::format("shard_{:05}.safetensors", world().rank()));
}

bool Saver::all_written(const TrainingState&, Written mine) {
  std::string report;
  if (!mine.problem.empty()) {
    report = concat(kFailed, mine.problem);
  } else if (!mine.shard.file.empty()) {
    report = shard_json(mine.shard);
  }
  reports_ = gather_texts(world(), std::move(report));
  return world().rank() == 0;
}

std::string Saver::settle(const TrainingState& state) {
  try {
    commit(state);
  } catch (const Error& error) {
    try {
      storage_.remove_tree(saving_folder(options_.folder, state.iteration, run_));
    } catch (const Error&) {  // it is not a valid checkpoint, and the next run removes it
    }
    return error.what();
  }
  remove_old_steps(state);
  return "";
}

std::string Saver::conclude(const TrainingState&, std::string mine) {
  return broadcast_text(world(), std::move(mine), 0);
}

void Saver::commit(const TrainingState& state) {
  std::string folder = saving_folder(options_.folder, state.iteration, run_);
  Manifest whole = manifest(state);
  for (std::size_t rank = 0; rank < reports_.size(); ++rank) {
    const std::string& report = reports_[rank];
    if (report.empty()) continue;
    BEV_CHECK(report.front() != kFailed, ErrorKind::kIo, "rank ", rank, ": ", report.substr(1));
    ShardEntry entry = parse_shard_json(report, concat("report of rank ", rank));
    std::string path = join_path(folder, entry.file);
    BEV_CHECK(file_bytes(path) == entry.bytes, ErrorKind::kIo, path, ": rank ", rank, " wrote ",
              entry.bytes, " bytes, rank 0 sees ", file_bytes(path),
              "; --save must be a folder that all ranks share");
    whole.shards.push_back(std::move(entry));
  }
  std::string path = join_path(folder, kManifestName), text = manifest_json(whole);
  parse_manifest(text, path);  // never write a manifest that does not parse
  replace_file(storage_, path, text);
  publish_step(storage_, options_.folder, state.iteration, run_);
}

void Saver::remove_old_steps(const TrainingState& saved) {
  std::vector<std::int64_t> old = steps_to_remove(complete_steps(options_.folder), saved.iteration,
                                                  retention_, saved.validation.best_steps);
  for (std::int64_t step : old) {
    try {
      remove_step(storage_, options_.folder, step);
    } catch (const Error& error) {
      log_warning(concat("checkpoint: an old step stays: ", error.what()));
    }
  }
}

}  // namespace bev
