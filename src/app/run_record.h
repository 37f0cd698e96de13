// run.json in the folder of a run: the flags as they were given, the folder in which they were
// given, and the length of the text, by which a changed one is noticed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/options.h"

namespace bev {

inline constexpr char kRunRecordName[] = "run.json";

struct RunRecord {
  std::string source;                  // file, for messages
  std::string folder = {};             // current folder of the run; "" if unknown
  std::vector<Setting> settings = {};  // as given
  std::int64_t text_tokens = 0;        // of --text; 0: none or unknown
};

std::string run_record_json(const Options& options, std::int64_t text_tokens);
// Throws Error(kInput) naming the file.
RunRecord read_run_record(const std::string& path);

}  // namespace bev
