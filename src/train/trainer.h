// The training loop of one rank: steps, schedules, loss scale, non-finite steps, validation,
// logging, checkpoints, exits.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/stop_signal.h"
#include "optim/loss_scaler.h"
#include "parallel/engine.h"
#include "train/config.h"
#include "train/evaluation.h"
#include "train/loader.h"
#include "train/run_reports.h"
#include "train/run_saver.h"
#include "train/spike_watch.h"
#include "train/step_source.h"

namespace bev {

class DeviceTimestamp;

struct TrainerConfig {
  OptimConfig optim;
  BatchConfig batch;
  DataConfig data;
  LoaderConfig loader;
  TrainConfig train;
  LogConfig log;
  bool fp16 = false;
  std::optional<TrainingState> start = {};  // the state of a loaded run
  CheckpointConfig checkpoint = {};
  std::int64_t steps_ahead = -1;  // steps begun before a result is known; -1: chosen by device
  StepSource* source = nullptr;   // makes the batches, if there are no data; must outlive the run
};

// Ordered by priority, the highest last.
enum class StopReason : std::uint8_t { kFinished, kPatience, kDuration, kInterval, kSignal };

struct TrainOutcome {
  StopReason reason = StopReason::kFinished;
  int signal = 0;
  std::int64_t iterations = 0, consumed_samples = 0, consumed_tokens = 0;  // of this process
  std::int64_t last_iteration = 0;                                         // of the whole run
  std::int64_t skipped = 0;
  double seconds = 0;
  std::vector<EvalResult> evaluations;  // the last validation, and the test
  ValidationState validation;           // the best one
  std::string failure;  // why the run must not go on: NaN or Inf, data; "" if all is well
  ErrorKind failure_kind = ErrorKind::kNumeric;
  std::string save_problem;  // why the last state was not saved; "" if it was
  LossCurves curves;         // of the whole run; on rank 0 only
};

class Trainer {
 public:
  // `stop` may be null; `saver` is null if nothing is saved. All ranks must use the same
  // configuration.
  Trainer(Engine& engine, const TrainerConfig& config, const RunData& data, const StopSignal* stop,
          RunSaver* saver = nullptr);
  ~Trainer();

  // A run that stops because of NaN or Inf saves the last good state too.
  TrainOutcome run();

 private:
  std::unique_ptr<Loader> open_loader(std::shared_ptr<const Dataset> data,
                                      std::shared_ptr<const SampleOrder> order,
                                      const BatchSchedule& batches, std::int64_t consumed_samples);
  StepBatch load(std::int64_t iteration);
  // Input of a step that follows the first `before` steps in flight, assuming that these succeed.
  StepInput input_for(std::int64_t iteration, std::size_t before) const;
  bool may_begin(std::int64_t iteration) const;
  void begin_time();
  // Seconds since begin_time() or the last call; `end` is the end of the step.
  double take_time(std::shared_ptr<const DeviceTimestamp> end);
  void begin(std::int64_t iteration);
  bool skips(std::int64_t iteration) const;
  // Reads the batch of an iteration and leaves it out.
  void skip(std::int64_t iteration);
  // Writes tensors of the step to files, if an interval is due.
  void save_tensors(const StepBatch& batch, const StepInput& input);
  bool saves_tensors(std::int64_t iteration) const;
  void watch_for_spikes(std::int64_t iteration, const StepResult& result);
  // Throws Error(kNumeric) if a check of the weights is due and ranks differ.
  void check_weights(std::int64_t iteration);
  // Calls work(); false if that failed because of the data, and the run can end in good order.
  template <class Work>
  bool survives(const Work& work);
  // Waits for the oldest step in flight. If it was bad, the later ones are begun again, unless the
  // run ends with it: failure_ is set then. Returns nullopt if the run ends before the step.
  std::optional<StepReport> finish_step();
  // Names the first bad tensor where that matters, and counts skipped steps in a row.
  struct BadStep {
    bool nan = true;            // not just an overflow of a loss scale that can go down
    bool stops_before = false;  // the run ends with the state before the step
  };
  BadStep handle_bad_step(const StepInFlight& step, const StepResult& result);
  // True if all weights are finite on all ranks.
  bool weights_finite();
  // Evaluates the sets of a split; nullopt if a signal interrupts it.
  std::optional<std::vector<EvalResult>> evaluate(const char* split, std::span<const EvalSet> sets);
  // Called on all ranks after a signal has interrupted an evaluation.
  void interrupt(TrainOutcome& outcome);
  void validate(const StepReport& at, TrainOutcome& outcome);
  void test(TrainOutcome& outcome);
  TrainOutcome evaluate_only();
  StepReport report_after(std::int64_t iteration) const;
  bool validation_due(std::int64_t iteration) const;
  // Saves the last state if the run has done anything, and says in failure_ what became of it.
  void save_last(TrainOutcome& outcome);
  void report_memory(std::int64_t iteration);
  void go_on_from(const TrainingState& state);
  TrainingState state_after(std::int64_t iteration) const;
  // Decision of all ranks after an iteration.
  struct Agreement {
    StopReason reason = StopReason::kFinished;
    int signal = 0;
    bool save = false, pending = false;  // a save is wanted; a save is still pending on a rank
  };
  Agreement agree(std::int64_t iteration);
  void save_when_due(std::int64_t iteration, const Agreement& agreed);
  void report_saved();
  void finish(TrainOutcome& outcome);

  Engine& engine_;
  TrainerConfig config_;
  const RunData& data_;
  const StopSignal* stop_;
  RunSaver* saver_;
  BatchSchedule batches_;
  LrSchedule lr_;
  std::vector<ParamRule> rules_;  // rules of groups with their own learning rate
  WeightDecaySchedule weight_decay_;
  LossScaler scaler_;
  std::unique_ptr<RunReports> reports_;  // null but on rank 0
  EvalBatch eval_batch_;
  std::unique_ptr<Loader> loader_;      // null in a replay
  std::int64_t iterations_ = 0;         // of the whole run
  std::int64_t first_iteration_ = 1;    // earlier iterations were run by another process
  std::int64_t consumed_samples_ = 0;   // position in the data
  std::int64_t scheduled_samples_ = 0;  // for the learning rate: skipped steps do not count
  std::int64_t consumed_tokens_ = 0, skipped_ = 0;
  std::int64_t skips_in_a_row_ = 0;
  std::string failure_;
  std::optional<Error> data_error_;
  SpikeWatch losses_, norms_;
  ValidationState validation_;
  TrainingState begin_;  // state at the start of this process
  std::size_t steps_ahead_ = 0;
  double start_seconds_ = 0;  // of the run
  // Begin of the iteration to report, by the host clock and on the device.
  double begin_seconds_ = 0;
  std::shared_ptr<const DeviceTimestamp> begin_timestamp_;
};

}  // namespace bev
