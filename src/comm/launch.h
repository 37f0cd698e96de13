// Launcher detection: started alone, or as one of several processes by mpirun, by srun, or with
// torchrun's environment variables.
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
  int local_processes = 1;     // processes on this machine
  bool bound = false;          // the launcher bound this process to its own cores
  std::string master_address;  // kTcp: address where process 0 listens
  int master_port = 29500;
  Settings settings;      // settings of this process, which must be equal in all processes
  int local_process = 0;  // index among the processes on this machine
};

// Throws Error(kConfig) naming the variable if one is missing or not a number.
Launch find_launch(const std::map<std::string, std::string>& environment);

}  // namespace bev
