#include "checkpoint/convert/state_source.h"

#include <sys/stat.h>

#include "base/error.h"
#include "base/file.h"

namespace bev {

namespace {

// Sizes and times of all files below a folder, one level deep.
std::string identity_of(const std::string& folder) {
  std::string out = folder;
  auto add = [&](const std::string& path) {
    struct stat info {};
    if (::stat(path.c_str(), &info) != 0) return;
    out +=
        concat("\n", path, " ", info.st_size, " ", info.st_mtim.tv_sec, ".", info.st_mtim.tv_nsec);
  };
  for (const std::string& name : list_directory(folder)) {
    std::string path = join_path(folder, name);
    if (!is_directory(path)) {
      add(path);
      continue;
    }
    for (const std::string& inner : list_directory(path)) add(join_path(path, inner));
  }
  return out;
}

class CheckpointTensor final : public StateTensor {
 public:
  CheckpointTensor(CheckpointReader& reader, std::string name)
      : reader_(reader), name_(std::move(name)) {}
  void read(const Box& box, Dtype dtype, void* out) override {
    reader_.read(name_, box, dtype, out);
    reader_.forget(name_, box);  // it is not read again
  }

 private:
  CheckpointReader& reader_;
  std::string name_;
};

class FolderTensor final : public StateTensor {
 public:
  FolderTensor(const ParamMapping& mapping, const WeightFiles& files)
      : mapping_(mapping), files_(files), stored_(mapping, files) {}
  void read(const Box& box, Dtype dtype, void* out) override {
    auto* to = static_cast<std::byte*>(out);
    for (const BoxRun& run : common_runs(whole_box(mapping_.shape), box, box)) {
      stored_.read({run.a, run.a + run.count}, dtype,
                   to + static_cast<std::size_t>(run.b) * size_of(dtype));
    }
    forget();
  }

 private:
  // What was read is not read again.
  void forget() {
    for (std::size_t part = 0; part < mapping_.tensors.size(); ++part) {
      if (stored_packed(mapping_, part, files_)) continue;
      forget_pages(stored_tensor(mapping_, part, files_).bytes);
    }
  }

  const ParamMapping& mapping_;
  const WeightFiles& files_;
  StoredParam stored_;
};

}  // namespace

const std::map<std::string, GlobalTensor>& CheckpointState::tensors() const {
  return reader_.manifest().tensors;
}

std::unique_ptr<StateTensor> CheckpointState::open(const std::string& name) {
  return std::make_unique<CheckpointTensor>(reader_, name);
}

std::string CheckpointState::identity() const { return identity_of(reader_.folder()); }

HfState::HfState(const WeightMap& map, const WeightFiles& files) : map_(map), files_(files) {
  for (const ParamMapping& mapping : map.params()) {
    tensors_[mapping.param] = {dtype_of_part(mapping, 0, files), mapping.shape};
  }
}

std::unique_ptr<StateTensor> HfState::open(const std::string& name) {
  return std::make_unique<FolderTensor>(map_.find(name), files_);
}

std::string HfState::identity() const { return identity_of(files_.folder()); }

}  // namespace bev
