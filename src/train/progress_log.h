// progress.txt in the folder of --save, in Megatron's wording (--log-progress): a line for the
// start of a job and one for each checkpoint that is complete.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "train/report_file.h"

namespace bev {

inline constexpr char kProgressName[] = "progress.txt";

class ProgressLog {
 public:
  // Appends the line of the job. What earlier jobs have done is read from the file.
  ProgressLog(const std::string& folder, std::int64_t world_size);
  ~ProgressLog();

  // A step that is done: tokens of the run so far, and floating-point operations of the step.
  void step(std::int64_t iteration, std::int64_t consumed_tokens, double flops);
  // The checkpoint of an iteration is complete.
  void saved(std::int64_t iteration);

 private:
  struct Point {
    std::int64_t tokens;
    double flops;  // of the run
  };
  // The operations at the last checkpoint in the file, and the start of the first job of so many
  // ranks since another number was used.
  void read_earlier(const std::string& text);
  void append(const std::string& text);

  std::int64_t world_size_;
  double begun_seconds_, flops_ = 0, job_begin_flops_ = 0;
  double first_seconds_ = 0, first_flops_ = 0;  // of all jobs of so many ranks, in Unix time
  std::map<std::int64_t, Point> points_;        // iterations after the last checkpoint
  std::unique_ptr<ReportFile> file_;
};

}  // namespace bev
