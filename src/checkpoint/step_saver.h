// Asynchronous checkpointing: saves an engine's state, one step at a time, during training.
//
//   every rank   begin | copy ... write ... sync |  settle  |
//                                     all are done: advance  | all are done: advance -> outcome
//
// Ranks change phases together, in advance(), which the caller calls when no rank is pending; it
// learns that from the agreement that ranks reach in every step anyway. Both phases run in the
// background; kinds of savers differ in the second.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "checkpoint/staging.h"
#include "checkpoint/storage.h"
#include "parallel/engine.h"

namespace bev {

struct SourcePiece;

struct SaveOutcome {
  std::int64_t iteration = 0;
  std::string problem = {};   // "": the step is saved
  double seconds = 0;         // from begin() to the end
  double waited_seconds = 0;  // part of it that blocked the caller on this rank
};

struct SaverOptions {
  std::string folder;
  std::vector<ConfigEntry> config = {};  // of the run, for the manifest
  bool with_optimizer = true;
  // Ranks that hold the same elements divide the writing, in pieces of at least this many.
  std::int64_t least_piece_elements = 1 << 18;
};

class StepSaver : public StateReader {
 public:
  ~StepSaver() override;

  // Allocates the staging memory in the background, so that the first save need not wait.
  void make_staging();
  // Starts saving the engine's current state. Collective; no save may be in flight. Failures are
  // reported by the outcome.
  void begin(const TrainingState& state);
  bool in_flight() const;
  // True if this rank still works on the current phase; waits at most `seconds`.
  bool pending(double seconds = 0) const;
  // Collective; no rank may be pending. Returns the outcome when the save is finished.
  std::optional<SaveOutcome> advance();
  // Collective. Waits for the end of the save in flight.
  SaveOutcome finish();

  void wait_read() override;

 protected:
  // `storage` and `pool` belong to the process and must outlive the saver.
  StepSaver(Engine& engine, Storage& storage, StagingPool& pool, SaverOptions options);

  // This rank's result of the first phase.
  struct Written {
    ShardEntry shard = {};     // without a file if the rank had nothing to write
    std::string problem = {};  // why there is no shard
  };
  // Path of this rank's shard.
  virtual std::string shard_path(std::int64_t iteration) const = 0;
  // Collective, between the phases; ranks may communicate. Returns true if this rank has work in
  // the second phase.
  virtual bool all_written(const TrainingState& state, Written mine) = 0;
  // Second phase, in the background. Returns a problem or "".
  virtual std::string settle(const TrainingState& state) = 0;
  // Collective, at the end. Returns the problem of the save, given this rank's.
  virtual std::string conclude(const TrainingState& state, std::string mine) = 0;

  // Waits for this rank's work in flight; the save stays incomplete. Destructors of derived classes
  // must call it, because the second phase uses their members.
  void abandon();

  Group& world() const { return engine_.model().mesh().world().host(); }
  Manifest manifest(const TrainingState& state) const;

  Engine& engine_;
  Storage& storage_;
  StagingPool& pool_;
  SaverOptions options_;

 private:
  struct Flight;
  std::vector<SourcePiece> my_pieces() const;
  std::optional<SaveOutcome> advance_flight();

  std::unique_ptr<Flight> flight_;
  struct Ahead;
  std::unique_ptr<Ahead> ahead_;
};

}  // namespace bev
