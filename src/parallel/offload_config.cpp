#include "parallel/offload_config.h"

#include <algorithm>

#include "base/fields.h"
#include "base/text.h"
#include "models/config.h"
#include "parallel/config.h"

namespace bev {

void OffloadConfig::fields(FieldList& list) {
  list.section("activation offload");
  list.add("cpu-offloading-num-layers", cpu_offloading_num_layers,
           "first layers of each stage whose activations wait for their backward in host memory")
      .min(0)
      .limit(1 << 20);
  list.add("fine-grained-activation-offloading", fine_grained_activation_offloading,
           "the same for parts of all layers");
  list.add("offload-modules", offload_modules, "the parts of fine-grained offloading")
      .one_of(offload_part_names());
  list.add("min-offloaded-tensor-size", min_offloaded_tensor_size,
           "elements of a tensor that is worth moving")
      .min(1)
      .limit(1e15);
  list.add("activation-offload-fraction", activation_offload_fraction,
           "fine-grained: share of a stage's layers whose parts go, from the first on")
      .min(0)
      .max(1);
}

OffloadPolicy OffloadConfig::policy() const {
  OffloadPolicy policy;
  policy.layers = cpu_offloading_num_layers;
  policy.fraction = activation_offload_fraction;
  policy.min_elements = min_offloaded_tensor_size;
  std::vector<std::string> names = offload_part_names();
  for (const std::string& module : offload_modules) {
    auto found = std::ranges::find(names, module);
    policy.parts.push_back(static_cast<OffloadPart>(found - names.begin()));
  }
  return policy;
}

namespace {

void check_flags(const OffloadConfig& offload, std::vector<std::string>& out) {
  bool fine = offload.fine_grained_activation_offloading;
  std::string names = join(offload_part_names(), " ");
  if (fine && offload.offload_modules.empty()) {
    out.push_back(
        concat("--fine-grained-activation-offloading: give --offload-modules some of ", names));
  }
  if (!fine && !offload.offload_modules.empty()) {
    out.push_back("--offload-modules: needs --fine-grained-activation-offloading");
  }
  if (fine && offload.cpu_offloading_num_layers > 0) {
    out.push_back(
        "--cpu-offloading-num-layers: moves whole layers, "
        "--fine-grained-activation-offloading parts of them; leave one of the two out");
  }
}

// Refuses modules that no layer of the model has, or that save no activations.
void check_parts(const ParallelConfig& parallel, const ModelConfig& model,
                 std::vector<std::string>& out) {
  bool dense = model.has_dense_layers() || model.moe.shared_expert_size > 0;
  for (const std::string& module : parallel.offload.offload_modules) {
    bool of_experts = module.starts_with("expert_") || module == "moe_act";
    if (of_experts && !model.moe.any()) {
      out.push_back(concat("--offload-modules: ", module, ", but the model has no experts; its ",
                           "MLPs are mlp_fc1, mlp_act and mlp_fc2"));
    }
    if (module.starts_with("mlp_") && module != "mlp_norm" && !dense) {
      out.push_back(concat("--offload-modules: ", module, ", but all layers of the model have ",
                           "experts: expert_fc1, moe_act and expert_fc2"));
    }
  }
  bool all_again = parallel.recompute_granularity == RecomputeGranularity::kFull &&
                   parallel.recompute_method == RecomputeMethod::kUniform;
  const std::vector<std::string>& modules = parallel.offload.offload_modules;
  if (all_again && !modules.empty() && std::ranges::find(modules, "attn_norm") == modules.end()) {
    out.push_back(
        "--offload-modules: with --recompute-granularity full a layer keeps nothing but its "
        "input, which is attn_norm");
  }
}

}  // namespace

std::vector<std::string> offload_problems(const ParallelConfig& parallel,
                                          const ModelConfig& model) {
  std::vector<std::string> out;
  check_flags(parallel.offload, out);
  check_parts(parallel, model, out);
  std::int64_t layers = parallel.offload.cpu_offloading_num_layers;
  if (layers > model.num_layers) {
    out.push_back(concat("--cpu-offloading-num-layers: ", layers, " of the model's ",
                         model.num_layers, " layers; give at most so many"));
  }
  return out;
}

}  // namespace bev
