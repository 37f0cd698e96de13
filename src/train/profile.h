// --profile-trace: the traces of this process's ranks, from the check of the path before the run to
// the file after it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "train/config.h"
#include "train/trace_file.h"

namespace bev {

class DeviceTrace;

class Profile {
 public:
  // Ranks first_rank .. first_rank + ranks - 1 are of this process. `device` may be null.
  // Error(kIo) where the file cannot be written.
  Profile(const ProfileConfig& config, int first_rank, int ranks,
          std::unique_ptr<DeviceTrace> device);
  ~Profile();

  // Of a rank of this process.
  Trace* rank(int world_rank) const;
  // After all ranks have ended: writes the file and logs the summary.
  void finish();

 private:
  std::string path_;
  int first_rank_;
  std::unique_ptr<DeviceTrace> device_;
  RecordedTrace recorded_;
};

// Of the process whose first rank is `first_rank`: the first has the path as it is given, others
// trace.rank8.json for trace.json.
std::string trace_path(const std::string& path, int first_rank);

}  // namespace bev
