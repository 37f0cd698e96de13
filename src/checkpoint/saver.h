// Saves an engine's state, one step at a time, while training goes on.
//
//   every rank   begin | copy ... write ... sync |                    |
//   rank 0                                       | manifest, tracker  |
//                                  all are done: advance       done: advance -> outcome
//
// Ranks move from one phase to the next together, in advance(), which the caller calls when no
// rank is pending any more: it learns that with whatever ranks agree on in every step anyway.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "checkpoint/staging.h"
#include "checkpoint/step_folders.h"
#include "checkpoint/storage.h"
#include "parallel/engine.h"

namespace bev {

struct SaverOptions {
  std::string folder;
  std::vector<ConfigEntry> config = {};  // of the run, for the manifest
  bool with_optimizer = true;
  Retention retention = {};
  // Holders of the same elements share the writing of them from so many on.
  std::int64_t least_piece_elements = 1 << 18;
};

struct SaveOutcome {
  std::int64_t iteration = 0;
  std::string problem;  // "": the step is on disk and in the tracker
};

class Saver final : public StateReader {
 public:
  // All ranks; `storage` and `pool` are the process's and outlive it.
  Saver(Engine& engine, Storage& storage, StagingPool& pool, SaverOptions options);
  // Waits for what this rank has under way; the save stays incomplete unless it was finished.
  ~Saver() override;

  // Starts to save what the engine holds now. All ranks, when none is in flight. A failure is
  // told by the outcome.
  void begin(const TrainingState& state);
  bool in_flight() const;
  // Whether this rank still works on the present phase.
  bool pending() const;
  // All ranks, when none is pending; the outcome when the save is over.
  std::optional<SaveOutcome> advance();
  // All ranks: waits for the end of the save in flight.
  SaveOutcome finish();

  void wait_read() override;

 private:
  struct Flight;
  std::vector<std::string> gather_reports(const std::string& mine);
  std::string commit(const std::vector<std::string>& reports, const TrainingState& state);
  std::string share_problem(std::string problem);

  Engine& engine_;
  Storage& storage_;
  StagingPool& pool_;
  SaverOptions options_;
  std::string run_;  // told apart from other runs in names of saving folders
  std::unique_ptr<Flight> flight_;
};

}  // namespace bev
