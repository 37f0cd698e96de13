#include "train/report_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"

namespace bev {

namespace {
// Records that wait for a disk; older ones are dropped beyond it.
constexpr std::size_t kMostPendingBytes = std::size_t{64} << 20;

// A device, a pipe or a socket, which cannot be replaced by another file.
bool is_special(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode);
}
}  // namespace

void check_report_path(std::string_view flag, const std::string& path) {
  BEV_CHECK(!is_directory(path), ErrorKind::kConfig, flag, ": ", path,
            " is a folder; name a file in it");
  std::string folder = parent_path(path);
  while (!path_exists(folder)) folder = parent_path(folder);
  BEV_CHECK(is_directory(folder), ErrorKind::kConfig, flag, ": cannot write ", path, ": ", folder,
            " is no folder; give another path");
  bool allowed =
      path_exists(path) ? ::access(path.c_str(), W_OK) == 0 : ::access(folder.c_str(), W_OK) == 0;
  BEV_CHECK(allowed, ErrorKind::kConfig, flag, ": cannot write ", path, ": no permission in ",
            folder, "; give another path");
}

bool write_report(std::string_view name, const std::string& path, std::string_view content) {
  try {
    make_directories(parent_path(path));
    if (is_special(path)) {
      AppendFile(path, OpenMode::kAppend).write(content);
    } else {
      write_file(path, content);
    }
    return true;
  } catch (const Error& error) {
    log_warning(concat(name, ": ", error.what(), "; the run is not affected"));
    return false;
  }
}

void ReportFile::write(std::string record) {
  pending_bytes_ += record.size();
  pending_.push_back(std::move(record));
  write_pending();
}

bool ReportFile::write_pending() {
  try {
    if (!file_) {
      file_ = path_.empty() ? open() : std::make_unique<AppendFile>(path_, OpenMode::kAppend);
      path_ = file_->path();
    }
    drain();
  } catch (const Error& error) {
    file_.reset();  // opened again, in case that its file system is another one then
    failed(error.what());
    return false;
  }
  worked();
  return true;
}

void ReportFile::drain() {
  while (!pending_.empty()) {
    std::string_view rest = std::string_view(pending_.front()).substr(begun_bytes_);
    if (!rest.empty()) begun_bytes_ += file_->write_some(rest);
    if (begun_bytes_ < pending_.front().size()) continue;
    pending_bytes_ -= pending_.front().size();
    pending_.pop_front();
    begun_bytes_ = 0;
  }
}

void ReportFile::failed(std::string_view why) {
  // A record that is written in part stays, or the file would have half of it.
  std::size_t first = begun_bytes_ > 0 ? 1 : 0;
  while (pending_bytes_ > kMostPendingBytes && pending_.size() > first) {
    auto oldest = pending_.begin() + static_cast<std::ptrdiff_t>(first);
    pending_bytes_ -= oldest->size();
    pending_.erase(oldest);
    ++dropped_;
  }
  if (++failures_ != warn_at_) return;
  warn_at_ *= 10;
  std::string times = failures_ > 1 ? concat(" (", failures_, " times now)") : "";
  log_warning(
      concat(name_, ": ", why, times, "; the run goes on, and what is missing waits in memory"));
}

void ReportFile::worked() {
  if (failures_ == 0) return;
  std::string lost = dropped_ > 0 ? concat("; ", dropped_, " records are lost") : "";
  log_info(concat(name_, ": can be written again, and what waited is there", lost));
  failures_ = dropped_ = 0;
  warn_at_ = 1;
}

void ReportFile::finish() {
  if (pending_.empty() || write_pending()) return;
  log_warning(concat(name_, ": the last ", pending_.size(), " records could not be written"));
}

}  // namespace bev
