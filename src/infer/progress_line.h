// Progress of a long computation on stderr: how much is done, how fast, and the time that is left.
// On a terminal the line is redrawn in place, elsewhere a line comes from time to time.
#pragma once

#include <cstdint>
#include <string>

namespace bev {

class ProgressLine {
 public:
  // `total` of `unit` ("rows") are to be done.
  ProgressLine(std::string unit, std::int64_t total);

  // So many are done, with so many tokens.
  void advance(std::int64_t done, std::int64_t tokens);

 private:
  std::string unit_;
  std::int64_t total_;
  bool terminal_;
  double started_at_, shown_at_;
};

// "120 of 1000 rows, 12%, 8.1K tokens/s, 2m 03s left".
std::string progress_text(const std::string& unit, std::int64_t done, std::int64_t total,
                          std::int64_t tokens, double seconds);

}  // namespace bev
