// Runs shell commands and captures output and exit code.
#pragma once

#include <string>

#include "tests/support/temp_folder.h"

namespace bev {

struct Outcome {
  int code = -1;  // 128 + signal number if killed by a signal
  std::string out, err;
};

// Runs in `folder`, without input; stderr.txt there receives standard error.
Outcome run_shell(const TempFolder& folder, const std::string& command);

}  // namespace bev
