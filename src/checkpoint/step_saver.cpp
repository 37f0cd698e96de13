#include "checkpoint/step_saver.h"

#include <chrono>
#include <future>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "checkpoint/agreement.h"
#include "checkpoint/shard_save.h"
#include "kernels/device.h"

namespace bev {

struct StepSaver::Flight {
  TrainingState state;
  std::unique_ptr<ShardSave> shard;  // null if this rank has nothing to write
  bool settling = false;
  std::future<std::string> settled;
  double begun_seconds = 0, waited_seconds = 0;
};

// Background allocation of staging memory.
struct StepSaver::Ahead {
  std::unique_ptr<SideCopier> copier;
  std::jthread work;
};

namespace {

// Adds its lifetime to a sum.
class Stopwatch {
 public:
  explicit Stopwatch(double& sum) : sum_(sum) {}
  ~Stopwatch() { sum_ += monotonic_seconds() - begin_; }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double& sum_;
  double begin_ = monotonic_seconds();
};

}  // namespace

StepSaver::StepSaver(Engine& engine, Storage& storage, StagingPool& pool, SaverOptions options)
    : engine_(engine), storage_(storage), pool_(pool), options_(std::move(options)) {}

StepSaver::~StepSaver() = default;

void StepSaver::abandon() {
  engine_.set_reader(nullptr);
  flight_.reset();
}

bool StepSaver::in_flight() const { return flight_ != nullptr; }

Manifest StepSaver::manifest(const TrainingState& state) const {
  Manifest made{.program_version = BEV_VERSION,
                .state = state,
                .config = options_.config,
                .tensors = global_tensors(engine_.model().options(), options_.with_optimizer),
                .shards = {}};
  if (options_.with_optimizer) made.late_starts = engine_.optimizer()->late_starts();
  return made;
}

void StepSaver::make_staging() {
  std::size_t bytes = 0;
  for (const SourcePiece& piece : my_pieces()) {
    bytes += static_cast<std::size_t>(piece.box.global.numel()) * size_of(piece.dtype);
  }
  ahead_ = std::make_unique<Ahead>();
  ahead_->copier = engine_.model().ctx().kernels.device.open_copier(engine_.model().ctx().stream);
  SideCopier& copier = *ahead_->copier;
  ahead_->work = std::jthread([this, bytes, &copier](const std::stop_token& stop) {
    pool_.make_ahead(copier, bytes, stop);
  });
}

std::vector<SourcePiece> StepSaver::my_pieces() const {
  return pieces_to_write(engine_, options_.with_optimizer, options_.least_piece_elements);
}

void StepSaver::begin(const TrainingState& state) {
  BEV_CHECK(!flight_, ErrorKind::kInternal, "checkpoint: a save began while one was in flight");
  flight_ = std::make_unique<Flight>();
  flight_->state = state;
  flight_->begun_seconds = monotonic_seconds();
  Stopwatch waiting(flight_->waited_seconds);
  std::vector<SourcePiece> pieces = my_pieces();
  if (pieces.empty()) return;
  flight_->shard = std::make_unique<ShardSave>(engine_, std::move(pieces), storage_, pool_,
                                               shard_path(state.iteration));
  engine_.set_reader(this);
}

void StepSaver::wait_read() {
  if (!flight_ || !flight_->shard) return;
  Stopwatch waiting(flight_->waited_seconds);
  flight_->shard->wait_copied();
}

bool StepSaver::pending(double seconds) const {
  if (!flight_) return false;
  if (!flight_->settling) return flight_->shard && !flight_->shard->written(seconds);
  auto most = std::chrono::duration<double>(seconds);
  return flight_->settled.valid() && flight_->settled.wait_for(most) != std::future_status::ready;
}

std::optional<SaveOutcome> StepSaver::advance() {
  if (!flight_) return std::nullopt;
  std::optional<SaveOutcome> outcome;
  {
    Stopwatch waiting(flight_->waited_seconds);
    outcome = advance_flight();
  }
  if (!outcome) return std::nullopt;
  outcome->seconds = monotonic_seconds() - flight_->begun_seconds;
  outcome->waited_seconds = flight_->waited_seconds;
  flight_.reset();
  return outcome;
}

std::optional<SaveOutcome> StepSaver::advance_flight() {
  if (flight_->settling) {
    std::string problem = flight_->settled.valid() ? flight_->settled.get() : "";
    return SaveOutcome{flight_->state.iteration, conclude(flight_->state, std::move(problem))};
  }
  Written mine;
  try {
    if (flight_->shard) mine.shard = flight_->shard->result();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kIo) throw;
    mine.problem = error.what();
  }
  engine_.set_reader(nullptr);
  flight_->settling = true;
  if (!all_written(flight_->state, std::move(mine))) return std::nullopt;
  flight_->settled = std::async(std::launch::async, [this]() -> std::string {
    try {
      return settle(flight_->state);
    } catch (const Error& error) {
      return error.what();
    }
  });
  return std::nullopt;
}

// A disk may take longer than the timeout of a collective, so ranks poll with repeated short ones.
SaveOutcome StepSaver::finish() {
  constexpr double kBetweenMeetings = 0.05;
  while (true) {
    for (bool waits = true; waits;) {
      Stopwatch waiting(flight_->waited_seconds);
      waits = any_rank(world(), pending(kBetweenMeetings), "end of a save");
    }
    if (std::optional<SaveOutcome> outcome = advance()) return *outcome;
  }
}

}  // namespace bev
