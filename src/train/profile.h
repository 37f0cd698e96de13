// --profile-trace: the traces of the ranks of this process, from the check of the path before the
// run to the file after it.
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
  // Ranks first_rank .. first_rank + ranks - 1 belong to this process. `device` may be null. Throws
  // Error(kConfig) if the path can never be written.
  Profile(const ProfileConfig& config, int first_rank, int ranks,
          std::unique_ptr<DeviceTrace> device);
  ~Profile();

  // Trace of a rank of this process.
  Trace* rank(int world_rank) const;
  // Writes the file and logs the summary; called after all ranks have ended. A failure is a
  // warning.
  void finish();

 private:
  std::string path_;
  int first_rank_;
  std::unique_ptr<DeviceTrace> device_;
  RecordedTrace recorded_;
};

// File of the process whose first rank is `first_rank`: the first process uses the path as given,
// others e.g. trace.rank8.json for trace.json.
std::string trace_path(const std::string& path, int first_rank);

}  // namespace bev
