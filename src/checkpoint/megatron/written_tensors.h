// Our tensors as Megatron's modules name and stack them, the counterpart of model_tensors.h, and
// the table of a torch_dist folder.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/convert/part_files.h"
#include "checkpoint/megatron/written_arguments.h"
#include "models/config.h"

namespace bev {

// Where a parameter of ours lies: `lead` are the leading indices of a stacked tensor, and `dims`
// how many there are of each.
struct WrittenPlace {
  std::string name;
  std::vector<std::int64_t> lead, dims;
};

class WrittenNames {
 public:
  WrittenNames(const ModelConfig& model, bool transformer_engine);

  WrittenPlace place(const std::string& param) const;
  // Keys of the empty states (_extra_state) that Megatron's modules ask for, for these parameters.
  std::vector<std::string> extra_states(const std::vector<std::string>& params) const;

 private:
  std::string module_name(const std::string& param) const;
  std::string extra_key(const WrittenPlace& module, std::int64_t expert) const;

  const ModelConfig& model_;
  bool transformer_engine_, stacked_;
};

// Parts of a tensor of ours under Megatron's name `prefix` + name, in its order of rows. `from` is
// the tensor of the source.
void add_written_parts(const ModelConfig& model, const WrittenPlace& place,
                       const std::string& prefix, const std::string& param, const PartSource& from,
                       Dtype dtype, std::size_t part_bytes, std::vector<OutputPart>& out);

// An object that lies at `at` of a file.
struct WrittenObject {
  std::string key, file;
  std::uint64_t at = 0, bytes = 0;
};
struct WrittenTensor {
  Dtype dtype = Dtype::kF32;
  Shape shape;
};
// The bytes of `.metadata`. `written` are the files, with the lengths of their parts.
std::string distributed_metadata(const std::map<std::string, WrittenTensor>& tensors,
                                 const std::vector<PlannedFile>& files,
                                 const std::vector<WrittenFile>& written,
                                 const std::vector<WrittenObject>& objects);

}  // namespace bev
