// Files that tell about a run: metrics, event files, plots, traces. They never end it. What cannot
// be written is a warning; records wait in memory and are tried again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "base/append_file.h"

namespace bev {

// Throws Error(kConfig) that starts with `flag` if the path can never be written: it is a folder,
// or no folder can hold it. A full disk is no error, because it may be cleared.
void check_report_path(std::string_view flag, const std::string& path);

// Writes a whole file, atomically unless the path is a device or a pipe. Returns false after a
// warning that starts with `name` if that fails.
bool write_report(std::string_view name, const std::string& path, std::string_view content);

// A file of records that grows during the run.
class ReportFile {
 public:
  // `name` is the output in warnings: "--metrics-out m.jsonl".
  explicit ReportFile(std::string name) : name_(std::move(name)) {}
  virtual ~ReportFile() = default;
  ReportFile(const ReportFile&) = delete;
  ReportFile& operator=(const ReportFile&) = delete;

  // Adds a record and writes all that wait. Warns of failures 1, 10, 100, .. in a row, and tells
  // when writing succeeds again.
  void write(std::string record);
  // Writes what waits, and opens the file if that is not done.
  void flush() { write_pending(); }
  // Tries once more; warns of records that are still not written. For the end of a run.
  void finish();
  const std::string& path() const { return path_; }  // "" until it is open

 protected:
  // Opens the file for the first time; called again later if it throws Error.
  virtual std::unique_ptr<AppendFile> open() = 0;

 private:
  // Returns false after a failure.
  bool write_pending();
  void drain();
  void failed(std::string_view why);
  void worked();

  std::string name_;
  std::unique_ptr<AppendFile> file_;
  std::string path_;
  std::deque<std::string> pending_;  // the first may be written in part
  std::size_t pending_bytes_ = 0, begun_bytes_ = 0;
  std::int64_t failures_ = 0, warn_at_ = 1, dropped_ = 0;
};

}  // namespace bev
