// Commands of a shell, with what they print and how they end.
#pragma once

#include <string>

#include "tests/support/temp_folder.h"

namespace bev {

struct Outcome {
  int code = -1;  // of a signal: 128 + its number, as a shell says it
  std::string out, err;
};

// In `folder`, without input; stderr.txt there keeps what goes to standard error.
Outcome run_shell(const TempFolder& folder, const std::string& command);

}  // namespace bev
