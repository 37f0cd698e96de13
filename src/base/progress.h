// Progress of a job whose size in bytes is known, as log lines with the time left.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace bev {

// "1.5 of 6.0 GB, 25%, 0.50 GB/s, 9 s left" after so many seconds; `skipped` of the bytes that are
// done were done before this job began and say nothing about its speed.
struct ProgressState {
  std::uint64_t done = 0, total = 0, skipped = 0;
  double seconds = 0;
};
std::string progress_text(const ProgressState& state);

// Thread safe.
class Progress {
 public:
  // The first line comes after `interval` seconds.
  Progress(std::string_view what, std::uint64_t total, double interval = 5);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void add(std::uint64_t bytes);
  // For bytes that an earlier job left done.
  void skip(std::uint64_t bytes);

 private:
  struct Clock;
  std::unique_ptr<Clock> clock_;
};

}  // namespace bev
