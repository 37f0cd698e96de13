// plan schedule: a pipeline's schedule as a picture, with its bubble and what it holds.
#include <algorithm>

#include "app/commands.h"
#include "base/error.h"
#include "base/file.h"
#include "base/output.h"
#include "parallel/layout_text.h"
#include "parallel/pipeline_layout.h"
#include "parallel/schedule_player.h"
#include "plan/schedule_drawing.h"

namespace bev {

namespace {

// As given, as the layout's text says, or one for each stage.
std::int64_t layer_count(const PlanScheduleOptions& wanted, const ParallelConfig& parallel) {
  if (wanted.num_layers > 0) return wanted.num_layers;
  if (!parallel.pipeline_model_parallel_layout.empty()) {
    return layers_of_text(parallel.pipeline_model_parallel_layout);
  }
  bool v = parallel.pipeline_schedule == PipelineSchedule::kZeroBubbleV;
  std::int64_t chunks = parallel.num_virtual_stages_per_pipeline_rank;
  std::int64_t each = parallel.num_layers_per_virtual_pipeline_stage;
  return parallel.pipeline_model_parallel_size * std::max<std::int64_t>(chunks, v ? 2 : 1) *
         std::max<std::int64_t>(each, 1);
}

}  // namespace

int run_plan_schedule(CommandConfig& config, const FieldList&, Options& options) {
  if (config.launch.process != 0) return kExitOk;  // one prints it for all
  const PlanScheduleOptions& wanted = config.plan_schedule;
  ParallelConfig& parallel = config.run.parallel;
  std::int64_t layers = layer_count(wanted, parallel);
  options.add_problems(parallel.resolve());
  options.add_problems(pipeline_problems(layers, parallel, {{wanted.micro_batches}}));
  options.throw_problems();
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

}  // namespace bev
