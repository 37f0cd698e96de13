#include "train/progress_log.h"

#include <fmt/format.h>
#include <time.h>

#include <cstdlib>

#include "base/clock.h"
#include "base/environment.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"

namespace bev {

namespace {

constexpr const char* kStart = "Starting job";
constexpr const char* kSaved = "Saved checkpoint";
constexpr std::size_t kTimestampLength = 19;  // without the fraction of a second

class ProgressFile final : public ReportFile {
 public:
  explicit ProgressFile(std::string path)
      : ReportFile(concat("--log-progress ", path)), path_(std::move(path)) {}

 private:
  std::unique_ptr<AppendFile> open() override {
    make_directories(parent_path(path_));
    return std::make_unique<AppendFile>(path_, OpenMode::kAppend);
  }
  std::string path_;
};

// Unix time of "YYYY-MM-DD HH:MM:SS" in local time; 0 if it is none.
double seconds_of(const std::string& timestamp) {
  ::tm parts{};
  parts.tm_isdst = -1;
  if (::strptime(timestamp.c_str(), "%Y-%m-%d %H:%M:%S", &parts) == nullptr) return 0;
  return static_cast<double>(::mktime(&parts));
}

// The number behind "NAME: ", 0 if there is none.
double number_of(const std::string& cell) {
  std::size_t colon = cell.find(": ");
  return colon == cell.npos ? 0 : std::strtod(cell.c_str() + colon + 2, nullptr);
}

double unix_seconds() { return static_cast<double>(unix_microseconds()) * 1e-6; }

}  // namespace

ProgressLog::ProgressLog(const std::string& folder, std::int64_t world_size)
    : world_size_(world_size), begun_seconds_(monotonic_seconds()) {
  const std::string path = join_path(folder, kProgressName);
  try {
    if (path_exists(path)) read_earlier(read_file(path));
  } catch (const Error& error) {
    log_warning(concat(error.what(), "; its numbers begin anew"));
  }
  if (first_seconds_ == 0) {
    first_seconds_ = unix_seconds();
    first_flops_ = flops_;
  }
  job_begin_flops_ = flops_;
  file_ = std::make_unique<ProgressFile>(path);
  append(kStart);
}

ProgressLog::~ProgressLog() { file_->finish(); }

void ProgressLog::read_earlier(const std::string& text) {
  for (const std::string& line : split(text, '\n')) {
    const std::vector<std::string> cells = split(line, '\t');
    if (cells.size() < 4) continue;
    if (cells[3] == kSaved && cells.size() > 7) flops_ = number_of(cells[7]);
    if (static_cast<std::int64_t>(number_of(cells[2])) != world_size_) {
      first_seconds_ = 0;
    } else if (cells[3] == kStart && first_seconds_ == 0) {
      first_seconds_ = seconds_of(cells[0]);
      first_flops_ = flops_;
    }
  }
}

void ProgressLog::step(std::int64_t iteration, std::int64_t consumed_tokens, double flops) {
  flops_ += flops;
  points_[iteration] = {consumed_tokens, flops_};
}

void ProgressLog::saved(std::int64_t iteration) {
  auto found = points_.find(iteration);
  if (found == points_.end()) return;
  const Point at = found->second;
  points_.erase(points_.begin(), std::next(found));
  auto tflops = [&](double flops, double seconds) {
    return seconds > 0 ? flops / (seconds * 1e12 * static_cast<double>(world_size_)) : 0.0;
  };
  append(fmt::format(
      "{}\tIteration: {}\tJob throughput: {:.1f} TFLOP/s/GPU\tCumulative throughput: {:.1f} "
      "TFLOP/s/GPU\tFloating-point operations: {:.2e}\tTokens (in billions): {:.2f}",
      kSaved, iteration, tflops(at.flops - job_begin_flops_, monotonic_seconds() - begun_seconds_),
      tflops(at.flops - first_flops_, unix_seconds() - first_seconds_), at.flops,
      static_cast<double>(at.tokens) / 1e9));
}

void ProgressLog::append(const std::string& text) {
  std::map<std::string, std::string> environment = environment_variables();
  file_->write(fmt::format("{}\tJob ID: {}\t# GPUs: {}\t{}\n",
                           local_timestamp().substr(0, kTimestampLength),
                           environment["SLURM_JOB_ID"], world_size_, text));
}

}  // namespace bev
