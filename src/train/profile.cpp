#include "train/profile.h"

#include "base/log.h"
#include "base/text.h"
#include "kernels/device.h"
#include "train/report_file.h"
#include "train/trace_summary.h"

namespace bev {

std::string trace_path(const std::string& path, int first_rank) {
  if (first_rank == 0) return path;
  std::size_t slash = path.rfind('/');
  std::size_t name = slash == path.npos ? 0 : slash + 1, dot = path.rfind('.');
  if (dot == path.npos || dot <= name) dot = path.size();
  return concat(path.substr(0, dot), ".rank", first_rank, path.substr(dot));
}

Profile::Profile(const ProfileConfig& config, int first_rank, int ranks,
                 std::unique_ptr<DeviceTrace> device)
    : path_(trace_path(config.profile_trace, first_rank)),
      first_rank_(first_rank),
      device_(std::move(device)) {
  check_report_path("--profile-trace", path_);
  // As in Megatron, the first traced iteration follows `start` others.
  for (int i = 0; i < ranks; ++i) {
    recorded_.ranks.push_back(std::make_unique<Trace>(first_rank + i, config.profile_step_start + 1,
                                                      config.profile_step_end, device_.get()));
  }
}

Profile::~Profile() = default;

Trace* Profile::rank(int world_rank) const {
  return recorded_.ranks[static_cast<std::size_t>(world_rank - first_rank_)].get();
}

void Profile::finish() {
  if (recorded_.ranks.front()->spans().empty()) {
    log_warning("--profile-trace: the run ended before --profile-step-start; there is no trace");
    return;
  }
  if (device_) {
    for (const auto& rank : recorded_.ranks) {
      if (rank->recording()) device_->stopped();  // the run was shorter than requested
    }
    recorded_.device = device_->take();
  }
  bool written = write_report("--profile-trace", path_, trace_json(recorded_));
  if (first_rank_ == 0) log_info(summary_text(summarise(recorded_)));
  if (written) log_info(concat("trace: ", path_));
}

}  // namespace bev
