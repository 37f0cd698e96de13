// Where a conversion reads: tensors of a training state under our names, from a checkpoint or from
// a Hugging Face folder.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "bridge/weight_files.h"
#include "bridge/weight_map.h"
#include "checkpoint/reader.h"

namespace bev {

// An open tensor, for one thread at a time.
class StateTensor {
 public:
  virtual ~StateTensor() = default;
  // Reads the box in row-major order, converted to `dtype`.
  virtual void read(const Box& box, Dtype dtype, void* out) = 0;
};

// Thread safe.
class StateSource {
 public:
  virtual ~StateSource() = default;
  virtual const std::map<std::string, GlobalTensor>& tensors() const = 0;
  virtual std::unique_ptr<StateTensor> open(const std::string& name) = 0;
  // Changes whenever what is read may have changed: files with their sizes and times.
  virtual std::string identity() const = 0;
};

class CheckpointState final : public StateSource {
 public:
  explicit CheckpointState(CheckpointReader& reader) : reader_(reader) {}
  const std::map<std::string, GlobalTensor>& tensors() const override;
  std::unique_ptr<StateTensor> open(const std::string& name) override;
  std::string identity() const override;

 private:
  CheckpointReader& reader_;
};

// Both must outlive it.
class HfState final : public StateSource {
 public:
  HfState(const WeightMap& map, const WeightFiles& files);
  const std::map<std::string, GlobalTensor>& tensors() const override { return tensors_; }
  std::unique_ptr<StateTensor> open(const std::string& name) override;
  std::string identity() const override;

 private:
  const WeightMap& map_;
  const WeightFiles& files_;
  std::map<std::string, GlobalTensor> tensors_;
};

}  // namespace bev
