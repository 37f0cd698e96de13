// Saves an engine's state, one step at a time, while training goes on.
//
//   every rank   begin | copy ... write ... sync |  settle  |
//                                     all are done: advance  | all are done: advance -> outcome
//
// Ranks move from one phase to the next together, in advance(), which the caller calls when no
// rank is pending any more: it learns that with whatever ranks agree on in every step anyway. Both
// phases run behind the training; kinds of savers differ in the second.
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
  double waited_seconds = 0;  // of these the caller was kept waiting on this rank
};

struct SaverOptions {
  std::string folder;
  std::vector<ConfigEntry> config = {};  // of the run, for the manifest
  bool with_optimizer = true;
  // Holders of the same elements share the writing of them from so many on.
  std::int64_t least_piece_elements = 1 << 18;
};

class StepSaver : public StateReader {
 public:
  ~StepSaver() override;

  // Has the memory for saves beside the training made, behind it, so that the first need not wait.
  void make_staging();
  // Starts to save what the engine holds now. All ranks, when none is in flight. A failure is
  // told by the outcome.
  void begin(const TrainingState& state);
  bool in_flight() const;
  // Whether this rank still works on the present phase, after waiting for it at most so long.
  bool pending(double seconds = 0) const;
  // All ranks, when none is pending; the outcome when the save is over.
  std::optional<SaveOutcome> advance();
  // All ranks: waits for the end of the save in flight.
  SaveOutcome finish();

  void wait_read() override;

 protected:
  // `storage` and `pool` are the process's and outlive it.
  StepSaver(Engine& engine, Storage& storage, StagingPool& pool, SaverOptions options);

  // A rank's share of the first phase.
  struct Written {
    ShardEntry shard = {};     // no file where the rank had nothing to write
    std::string problem = {};  // why it is not there
  };
  // Of the shard of this rank.
  virtual std::string shard_path(std::int64_t iteration) const = 0;
  // Between the phases, on all ranks, which may exchange what they must: whether this rank has work
  // in the second.
  virtual bool all_written(const TrainingState& state, Written mine) = 0;
  // The second phase, behind the training: a problem or "".
  virtual std::string settle(const TrainingState& state) = 0;
  // At the end, on all ranks: the problem of the save, given this rank's.
  virtual std::string conclude(const TrainingState& state, std::string mine) = 0;

  // Waits for what this rank has under way; the save stays incomplete. To be called by destructors,
  // since the second phase uses what they destroy.
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
