#include "checkpoint/saver.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <chrono>
#include <future>
#include <random>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "checkpoint/shard_save.h"

namespace bev {

struct Saver::Flight {
  TrainingState state;
  std::unique_ptr<ShardSave> shard;  // null where this rank has nothing to write
  bool committing = false;
  std::future<std::string> commit;  // on rank 0: the problem
};

namespace {

View bytes_of(std::string& text) {
  return {text.data(), Dtype::kU8, {static_cast<std::int64_t>(text.size())}};
}

// A rank's report: an entry of the manifest, or what went wrong behind this mark.
constexpr char kFailed = '!';

std::uint64_t file_bytes(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 ? static_cast<std::uint64_t>(info.st_size) : 0;
}

}  // namespace

Saver::Saver(Engine& engine, Storage& storage, StagingPool& pool, SaverOptions options)
    : engine_(engine), storage_(storage), pool_(pool), options_(std::move(options)) {
  Group& world = engine.mesh().world().host();
  std::uint64_t run = 0;
  if (world.rank() == 0) {
    remove_unfinished(storage_, options_.folder);  // before anybody can write
    run = std::random_device()();
  }
  world.broadcast({&run, Dtype::kI64, {1}}, 0, "name of a run").wait();
  run_ = fmt::format("{:08x}", run);
  engine_.set_reader(this);
}

Saver::~Saver() { engine_.set_reader(nullptr); }

bool Saver::in_flight() const { return flight_ != nullptr; }

void Saver::begin(const TrainingState& state) {
  BEV_CHECK(!flight_, ErrorKind::kInternal, "checkpoint: a save began while one was in flight");
  flight_ = std::make_unique<Flight>();
  flight_->state = state;
  std::vector<SourcePiece> pieces =
      pieces_to_write(engine_, options_.with_optimizer, options_.least_piece_elements);
  if (pieces.empty()) return;
  std::string folder = saving_folder(options_.folder, state.iteration, run_);
  std::string file = fmt::format("shard_{:05}.safetensors", engine_.mesh().world().rank());
  flight_->shard = std::make_unique<ShardSave>(engine_, std::move(pieces), storage_, pool_,
                                               join_path(folder, file));
}

void Saver::wait_read() {
  if (flight_ && flight_->shard) flight_->shard->wait_copied();
}

bool Saver::pending() const {
  if (!flight_) return false;
  if (!flight_->committing) return flight_->shard && !flight_->shard->written();
  return flight_->commit.valid() &&
         flight_->commit.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
}

std::optional<SaveOutcome> Saver::advance() {
  if (!flight_) return std::nullopt;
  if (flight_->committing) {
    SaveOutcome outcome{flight_->state.iteration, ""};
    if (flight_->commit.valid()) outcome.problem = flight_->commit.get();
    outcome.problem = share_problem(std::move(outcome.problem));
    flight_.reset();
    return outcome;
  }
  std::string report;
  try {
    if (flight_->shard) report = shard_json(flight_->shard->result());
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kIo) throw;
    report = concat(kFailed, error.what());
  }
  std::vector<std::string> reports = gather_reports(report);
  flight_->committing = true;
  if (reports.empty()) return std::nullopt;
  flight_->commit = std::async(
      std::launch::async, [this, all = std::move(reports)] { return commit(all, flight_->state); });
  return std::nullopt;
}

SaveOutcome Saver::finish() {
  while (true) {
    if (std::optional<SaveOutcome> outcome = advance()) return *outcome;
  }
}

// Of all ranks, on rank 0; none on others.
std::vector<std::string> Saver::gather_reports(const std::string& mine) {
  Group& world = engine_.mesh().world().host();
  std::string text = mine;
  auto size = static_cast<std::int64_t>(text.size());
  if (world.rank() != 0) {
    world.send({&size, Dtype::kI64, {1}}, 0, 0, "size of a report").wait();
    if (size > 0) world.send(bytes_of(text), 0, 0, "report of a shard").wait();
    return {};
  }
  std::vector<std::string> reports{mine};
  for (int rank = 1; rank < world.size(); ++rank) {
    world.receive({&size, Dtype::kI64, {1}}, rank, 0, "size of a report").wait();
    std::string& report = reports.emplace_back(static_cast<std::size_t>(size), ' ');
    if (size > 0) world.receive(bytes_of(report), rank, 0, "report of a shard").wait();
  }
  return reports;
}

// What rank 0 says, on every rank.
std::string Saver::share_problem(std::string problem) {
  Group& world = engine_.mesh().world().host();
  auto size = static_cast<std::int64_t>(problem.size());
  world.broadcast({&size, Dtype::kI64, {1}}, 0, "size of an outcome").wait();
  problem.resize(static_cast<std::size_t>(size));
  if (size > 0) world.broadcast(bytes_of(problem), 0, "outcome of a save").wait();
  return problem;
}

// Every shard is on disk, or a rank said why not: writes the manifest and puts the step in its
// place, or removes what there is of it. Returns the problem.
std::string Saver::commit(const std::vector<std::string>& reports, const TrainingState& state) {
  std::string folder = saving_folder(options_.folder, state.iteration, run_);
  try {
    Manifest manifest{BEV_VERSION,
                      state,
                      options_.config,
                      global_tensors(engine_.options(), options_.with_optimizer),
                      {}};
    for (std::size_t rank = 0; rank < reports.size(); ++rank) {
      const std::string& report = reports[rank];
      if (report.empty()) continue;
      BEV_CHECK(report.front() != kFailed, ErrorKind::kIo, "rank ", rank, ": ", report.substr(1));
      ShardEntry entry = parse_shard_json(report, concat("report of rank ", rank));
      std::string path = join_path(folder, entry.file);
      BEV_CHECK(file_bytes(path) == entry.bytes, ErrorKind::kIo, path, ": rank ", rank, " wrote ",
                entry.bytes, " bytes, rank 0 sees ", file_bytes(path),
                "; --save must be a folder that all ranks share");
      manifest.shards.push_back(std::move(entry));
    }
    std::string path = join_path(folder, kManifestName);
    std::string text = manifest_json(manifest);
    parse_manifest(text, path);  // a manifest that could not be read is not to be written
    replace_file(storage_, path, text);
    publish_step(storage_, options_.folder, state.iteration, run_);
  } catch (const Error& error) {
    try {
      storage_.remove_tree(folder);
    } catch (const Error&) {  // it is not taken for a checkpoint, and the next start removes it
    }
    return error.what();
  }
  for (std::int64_t step :
       steps_to_remove(complete_steps(options_.folder), state.iteration, options_.retention)) {
    try {
      remove_step(storage_, options_.folder, step);
    } catch (const Error& error) {
      log_warning(concat("checkpoint: an old step stays: ", error.what()));
    }
  }
  return "";
}

}  // namespace bev
