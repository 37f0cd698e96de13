// plan schedule: draws a pipeline schedule, with its bubble and its peak of micro-batches in
// flight.
#include <algorithm>

#include "app/commands/commands.h"
#include "app/options.h"
#include "app/run_config.h"
#include "base/error.h"
#include "base/fields.h"
#include "base/file.h"
#include "base/output.h"
#include "parallel/pipeline/layout_text.h"
#include "parallel/pipeline/pipeline_layout.h"
#include "parallel/pipeline/schedule_player.h"
#include "plan/schedule_drawing.h"

namespace bev {

namespace {

struct PlanScheduleOptions {
  std::int64_t micro_batches = 8;
  std::int64_t num_layers = 0;  // 0: one per stage, or those of the layout text
  // Duration of a micro-batch on a stage.
  double forward_time = 1, backward_input_time = 1, backward_weight_time = 1;
  std::string svg;
  RunConfig run;

  void fields(FieldList& list);
};

void PlanScheduleOptions::fields(FieldList& list) {
  list.section("plan schedule");
  list.add("micro-batches", micro_batches, "micro-batches of an iteration").min(1).limit(1 << 16);
  list.add("num-layers", num_layers, "layers of the model")
      .min(0)
      .limit(1 << 20)
      .defaults_to("one for each stage, or those of the layout");
  const char* time = "time of a micro-batch on a stage";
  list.add("forward-time", forward_time, time).above(0).limit(1e6);
  list.add("backward-input-time", backward_input_time, time).above(0).limit(1e6);
  list.add("backward-weight-time", backward_weight_time, time).above(0).limit(1e6);
  list.add("svg", svg, "also draw it into this SVG file");
  run.parallel.fields(list);
}

// The given number, that of the layout text, or one per stage.
std::int64_t layer_count(const PlanScheduleOptions& wanted) {
  const ParallelConfig& parallel = wanted.run.parallel;
  if (wanted.num_layers > 0) return wanted.num_layers;
  if (!parallel.pipeline_model_parallel_layout.empty()) {
    return layers_of_text(parallel.pipeline_model_parallel_layout);
  }
  std::int64_t least = traits_of(parallel.pipeline_schedule).default_chunks();
  std::int64_t chunks = parallel.num_virtual_stages_per_pipeline_rank;
  std::int64_t each = parallel.num_layers_per_virtual_pipeline_stage;
  return parallel.pipeline_model_parallel_size * std::max(chunks, least) *
         std::max<std::int64_t>(each, 1);
}

int run_plan_schedule(PlanScheduleOptions& wanted, const CommandInput& input) {
  if (input.launch.process != 0) return kExitOk;  // one process prints it
  ParallelConfig& parallel = wanted.run.parallel;
  std::int64_t layers = layer_count(wanted);
  input.options.add_problems(parallel.resolve());
  input.options.add_problems(pipeline_problems(layers, parallel, {{wanted.micro_batches}}));
  input.options.throw_problems();
  PipelineShape shape = pipeline_layout(layers, parallel).shape;
  ScheduleReport report = play_schedules(
      shape, make_schedules(shape, wanted.micro_batches), wanted.micro_batches, true,
      {wanted.forward_time, wanted.backward_input_time, wanted.backward_weight_time});
  BEV_CHECK(report.problem.empty(), ErrorKind::kInternal, "plan schedule: ", report.problem);
  write_stdout(schedule_text(shape, report, wanted.micro_batches));
  if (!wanted.svg.empty()) {
    write_file(wanted.svg, schedule_svg(shape, report, wanted.micro_batches));
  }
  return kExitOk;
}

}  // namespace

const Command kPlanScheduleCommand = {
    .name = "plan schedule",
    .summary = "order, bubble and memory of a pipeline's computations, drawn over time",
    .examples =
        "bevatron plan schedule --pp 4 --vpp 2 --micro-batches 8\n"
        "bevatron plan schedule --pp 8 --pipeline-schedule zb-v --micro-batches 16 --svg zbv.svg",
    .call = call_of<PlanScheduleOptions, run_plan_schedule>};

}  // namespace bev
