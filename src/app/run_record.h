// run.json in the folder of a run: the flags as they were given, and the folder in which they were
// given.
#pragma once

#include <string>
#include <vector>

#include "app/options.h"

namespace bev {

inline constexpr char kRunRecordName[] = "run.json";

struct RunRecord {
  std::string source;                  // file, for messages
  std::string folder = {};             // current folder of the run; "" if unknown
  std::vector<Setting> settings = {};  // as given
};

std::string run_record_json(const Options& options);
// Throws Error(kInput) naming the file.
RunRecord read_run_record(const std::string& path);

}  // namespace bev
