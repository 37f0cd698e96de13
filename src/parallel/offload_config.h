// Settings of activation offloading: which activations are kept in host memory until their
// backward.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "autograd/offload.h"

namespace bev {

class FieldList;
struct ModelConfig;
struct ParallelConfig;

struct OffloadConfig {
  std::int64_t cpu_offloading_num_layers = 0;  // of each stage
  bool fine_grained_activation_offloading = false;
  std::vector<std::string> offload_modules;
  std::int64_t min_offloaded_tensor_size = 1048576;  // elements
  double activation_offload_fraction = 1.0;

  void fields(FieldList& list);
  bool any() const { return cpu_offloading_num_layers > 0 || fine_grained_activation_offloading; }
  OffloadPolicy policy() const;
};

// Problems of the offload settings of this layout for this model.
std::vector<std::string> offload_problems(const ParallelConfig& parallel, const ModelConfig& model);

}  // namespace bev
