// schedule: prints or plots learning rate, weight decay and batch size by iteration.
#include <fmt/format.h>

#include "app/choose_model.h"
#include "app/commands/commands.h"
#include "app/options.h"
#include "app/replay.h"
#include "app/run_config.h"
#include "base/fields.h"
#include "base/output.h"
#include "train/plot.h"

namespace bev {

namespace {

struct ScheduleOptions {
  bool plot = false;
  RunConfig run;

  void fields(FieldList& list);
};

void ScheduleOptions::fields(FieldList& list) {
  list.section("schedule");
  list.add("plot", plot, "draw the schedule in the terminal instead of printing CSV");
  run.fields(list);
}

struct ScheduleRow {
  std::int64_t iteration, consumed_samples;
  double lr, weight_decay;
  std::int64_t batch_size;
};

std::vector<ScheduleRow> schedule_rows(const RunConfig& run) {
  BatchSchedule batches(run.batch.spec(run.parallel.batch_ranks(), run.data.seq_length));
  LrSchedule lr = lr_schedule(run.optim, batches);
  WeightDecaySchedule weight_decay = weight_decay_schedule(run.optim, run.train, batches);
  std::int64_t iterations = run.train.train_iters > 0
                                ? run.train.train_iters
                                : batches.iterations_within(run.train.train_samples);
  std::vector<ScheduleRow> rows;
  std::int64_t consumed = 0;
  for (std::int64_t i = 1; i <= iterations; ++i) {
    std::int64_t size = batches.at(consumed).running;
    rows.push_back({i, consumed, lr.lr(consumed), weight_decay.weight_decay(consumed), size});
    consumed += size;
  }
  return rows;
}

void plot(const std::vector<ScheduleRow>& rows) {
  auto draw = [&](const char* title, auto value) {
    std::vector<PlotPoint> points;
    for (const ScheduleRow& row : rows)
      points.push_back({static_cast<double>(row.iteration), value(row)});
    write_stdout(terminal_plot(points, {title}));
  };
  draw("learning rate", [](const ScheduleRow& row) { return row.lr; });
  draw("weight decay", [](const ScheduleRow& row) { return row.weight_decay; });
  draw("global batch size",
       [](const ScheduleRow& row) { return static_cast<double>(row.batch_size); });
}
int run_schedule(ScheduleOptions& wanted, const CommandInput& input) {
  // The model sets the sequence length, which converts the tokens of a batch size schedule into
  // samples.
  choose_model(wanted.run, input.fields, input.options);
  Replay replay = open_replay(wanted.run);
  input.options.add_problems(wanted.run.resolve_schedule());
  input.options.throw_problems();
  if (replay.problem) throw *replay.problem;
  if (input.launch.process != 0) return kExitOk;  // one process prints it
  std::vector<ScheduleRow> rows = schedule_rows(wanted.run);
  if (wanted.plot) {
    plot(rows);
    return kExitOk;
  }
  std::string text = "iteration,consumed_samples,lr,wd,batch_size\n";
  for (const ScheduleRow& row : rows) {
    text += fmt::format("{},{},{},{},{}\n", row.iteration, row.consumed_samples, row.lr,
                        row.weight_decay, row.batch_size);
  }
  write_stdout(text);
  return kExitOk;
}

}  // namespace

const Command kScheduleCommand = {
    .name = "schedule",
    .summary = "learning rate, weight decay and batch size of every iteration, as CSV",
    .examples =
        "bevatron schedule --lr 3e-4 --lr-decay-style cosine --lr-warmup-iters 10 --train-iters "
        "100 --plot",
    .call = call_of<ScheduleOptions, run_schedule>};

}  // namespace bev
