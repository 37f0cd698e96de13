// The folder of a run (--save): which run it belongs to, what lies in it by default, and the record
// that lets the run go on.
//
//   DIR/iter_0000100/ ..            checkpoints (checkpoint/step_folders.h)
//   DIR/run.json, model_files/      flags and tokenizer (app/recorded_run.h)
//   DIR/metrics.jsonl               every iteration and evaluation (train/run_reports.h)
//   DIR/loss.svg                    unless a flag names another place
//   DIR/cache/                      tokenized text and orders of samples, likewise
//   DIR/run.lock                    while a run saves there (train/run_lock.h)
//   DIR/replaced-1/ ..              runs that --existing-run replace moved away
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "app/run_config.h"
#include "train/run_lock.h"

namespace bev {

class FieldList;
class Options;

// Applies --existing-run if --save holds a run that --load does not go on with: adds a problem, or
// makes the run load it. Returns the last iteration in --save; nullopt if there is none.
std::optional<std::int64_t> settle_existing_run(const RunConfig& run, const FieldList& fields,
                                                Options& options);

// Sets the places of loss curve and caches that no flag names, if there is a --save.
void place_outputs(RunConfig& run, const Options& options);

// The file that gets the metrics of the run: --metrics-out, else one in --save; "" if none.
std::string metrics_path(const RunConfig& run);
// The file with the metrics of a run, by its folder. Throws Error(kInput) if there is none.
std::string metrics_of_run(const std::string& folder);

// Whether a run takes the place of the one in --save; `last` is what settle_existing_run()
// returned.
bool replaces_run(const CheckpointConfig& checkpoint, std::optional<std::int64_t> last);
// Moves checkpoints and reports in a run's folder to a new folder replaced-N in it; returns that.
std::string move_old_run(const std::string& folder);
// The same with the frequent checkpoints on the disk of this machine, if there are any: they would
// be taken for newer ones of the new run. Processes of a machine may call it at once.
void move_local_checkpoints(const CheckpointConfig& checkpoint);

// --save while a run uses it; made by process 0.
class RunFolder {
 public:
  // Locks the folder. `last` is what settle_existing_run() returned; throws Error(kConfig) if
  // another run lives there, or has saved since.
  RunFolder(const RunConfig& run, const Options& options, std::optional<std::int64_t> last);

  // Called once the model is made, its weights are loaded and the data are open, before anything is
  // written: moves a run that is replaced, and writes the record. Warns if a run goes on with
  // another text.
  void begin();

 private:
  void write_record();

  const RunConfig& run_;
  const Options& options_;
  bool replaces_, has_text_;
  RunLock lock_;
};

}  // namespace bev
