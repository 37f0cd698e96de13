// How this process was started: alone, or as one of several by mpirun, srun, or the variables that
// torchrun and its like set.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "comm/settings.h"

namespace bev {

enum class LaunchKind : std::uint8_t { kAlone, kMpi, kTcp };

struct Launch {
  LaunchKind kind = LaunchKind::kAlone;
  int process = 0, processes = 1;
  int local_processes = 1;     // on this machine
  bool bound = false;          // the launcher gave this process cores of its own
  std::string master_address;  // kTcp: where process 0 listens
  int master_port = 29500;
  Settings settings;      // what this process was given, which all must be given alike
  int local_process = 0;  // of those on this machine
};

// Error(kConfig) that names the variable when some are missing or no numbers.
Launch find_launch(const std::map<std::string, std::string>& environment);

}  // namespace bev
