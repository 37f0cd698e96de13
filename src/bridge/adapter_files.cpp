#include "bridge/adapter_files.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "bridge/adapter_config.h"
#include "bridge/adapter_start.h"
#include "bridge/hf_model.h"
#include "models/families/param_mapping.h"
#include "models/lora.h"
#include "models/model.h"

namespace bev {

namespace {

constexpr std::string_view kPrefix = "base_model.model.";

// peft's wrapper of a module with several adapted parameters holds that of all but the last.
std::string wrapped(const std::string& module, std::int64_t later) {
  std::string out = module;
  for (std::int64_t i = 0; i < later; ++i) out += ".base_layer";
  return out;
}

ParamMapping plain_mapping(const Param& param, std::string tensor) {
  ParamMapping mapping;
  mapping.param = param.name;
  mapping.shape = param.shape;
  mapping.tensors = {{std::move(tensor), {}, param.shape}};
  return mapping;
}

// A factor [experts, rows, columns] as a tensor of each expert.
ParamMapping expert_mapping(const Param& param, const AdaptedModule& module,
                            const std::string& ending) {
  ParamMapping mapping = plain_mapping(param, "");
  mapping.kind = WeightKind::kExperts;
  mapping.tensors.clear();
  for (const std::string& name : module.names) {
    mapping.tensors.push_back(
        {concat(kPrefix, name, ending), {}, {param.shape[1], param.shape[2]}});
  }
  return mapping;
}

// A of all experts is [experts * rank, in], and B [out, rank * experts] with the expert last.
void add_factors_of_all_experts(const LowRank& adapter, const std::string& module,
                                std::vector<ParamMapping>& out) {
  const Shape &a = adapter.a.shape, &b = adapter.b.shape;
  ParamMapping first = plain_mapping(adapter.a, concat(kPrefix, module, ".lora_A.weight"));
  first.kind = WeightKind::kExperts;
  first.tensors.front().shape = {a[0] * a[1], a[2]};
  ParamMapping second = plain_mapping(adapter.b, concat(kPrefix, module, ".lora_B.weight"));
  second.kind = WeightKind::kTranspose;
  second.shape = {b[0], b[1] * b[2]};
  second.tensors.front().shape = {b[1], b[2] * b[0]};
  out.insert(out.end(), {std::move(first), std::move(second)});
}

// The factor of the tokens is stored transposed.
void add_embedding_factors(const LowRank& adapter, const AdaptedModule& module,
                           std::vector<ParamMapping>& out) {
  const std::string name = concat(kPrefix, module.names.front());
  ParamMapping tokens = plain_mapping(adapter.a, name + ".lora_embedding_A");
  tokens.kind = WeightKind::kTranspose;
  tokens.tensors.front().shape = {adapter.a.shape[1], adapter.a.shape[0]};
  out.push_back(std::move(tokens));
  out.push_back(plain_mapping(adapter.b, name + ".lora_embedding_B"));
}

void add_factors(const ModelConfig& model, const LowRank& adapter, const AdaptedModule& module,
                 std::vector<ParamMapping>& out) {
  if (module.spec.embedding) return add_embedding_factors(adapter, module, out);
  if (adapter.a.shape.ndim() == 3) {
    out.push_back(expert_mapping(adapter.a, module, ".lora_A.weight"));
    out.push_back(expert_mapping(adapter.b, module, ".lora_B.weight"));
    return;
  }
  const std::string name = concat(kPrefix, module.names.front());
  out.push_back(plain_mapping(adapter.a, name + ".lora_A.weight"));
  out.push_back(plain_mapping(adapter.b, name + ".lora_B.weight"));
  auto as_rows_of_weight = [&] {
    out.back().order = module.order;
    if (module.kind != WeightKind::kNeoxQkv) return;
    out.back().kind = module.kind;
    out.back().head_size = model.head_size();
  };
  as_rows_of_weight();
  if (!adapter.magnitude) return;
  out.push_back(plain_mapping(*adapter.magnitude, name + ".lora_magnitude_vector"));
  out.back().tensors.front().other_names = {name + ".lora_magnitude_vector.weight"};
  as_rows_of_weight();
}

std::string module_of_parameter(const AdaptedModule& module) {
  const std::string& name = module.names.front();
  return name.substr(0, name.rfind('.'));
}

// Trained copies have the names and forms of what they are copies of.
void add_copies(const ModelConfig& model, std::vector<ParamMapping>& out) {
  const WeightMap plain(model);
  for_each_copy(model, [&](const Param& param, const Param& copy) {
    ParamMapping mapping = plain.find(param.name);
    mapping.param = copy.name;
    auto add_prefix = [](std::string& name) { name.insert(0, kPrefix); };
    for (HfTensor& tensor : mapping.tensors) {
      add_prefix(tensor.name);
      for (std::string& name : tensor.other_names) add_prefix(name);
    }
    for (std::string& name : mapping.whole_names) add_prefix(name);
    out.push_back(std::move(mapping));
  });
}

WeightMap map_of(const ModelConfig& model, std::size_t number, bool opposites) {
  std::vector<ParamMapping> out;
  // With an adapted embedding peft stores the embedding itself, which the model has.
  std::vector<std::string> ignored;
  const std::vector<LoraRules> all = lora_rules(model);
  const LoraRules& rules = all.at(number);
  std::map<std::string, std::int64_t> parameters;  // adapted ones of a module, still to come
  for_each_adapter(model, rules, [&](const Param&, const AdaptedModule& module) {
    if (module.all_experts) ++parameters[module_of_parameter(module)];
  });
  for_each_adapter(model, rules, [&](const Param& weight, const AdaptedModule& module) {
    LowRank adapter = make_low_rank(weight, module.spec);
    if (module.spec.opposite != opposites) return;
    if (module.spec.embedding) ignored.push_back(module.names.front() + ".base_layer.weight");
    if (!module.all_experts) return add_factors(model, adapter, module, out);
    BEV_CHECK(module.kind != WeightKind::kGateUpColumns, ErrorKind::kConfig,
              "--lora-target-parameters: ", module.names.front(),
              " has columns of gate and up in turns, whose adapters are not supported");
    std::string owner = module_of_parameter(module);
    add_factors_of_all_experts(adapter, wrapped(owner, --parameters[owner]), out);
  });
  if (number == 0 && !opposites) add_copies(model, out);
  if (copies_tied_embedding(model)) {
    for (const char* head : {"lm_head.weight", "embed_out.weight"}) ignored.emplace_back(head);
  }
  return {std::move(out), kAdapterConfigName, std::move(ignored)};
}

}  // namespace

WeightMap adapter_map(const ModelConfig& model, std::size_t number) {
  return map_of(model, number, false);
}

std::int64_t adapter_labels(const std::string& folder) {
  if (!path_exists(join_path(folder, kAdapterWeightsName))) return 0;
  const WeightFiles files(folder, kAdapterWeightsName);
  const StoredTensor* head = files.find(concat(kPrefix, kLabelHead));
  return head != nullptr && head->shape.size() == 2 ? head->shape[0] : 0;
}

void load_adapter(RankModel& model, const std::string& folder, std::size_t number) {
  std::string path = join_path(folder, kAdapterWeightsName);
  BEV_CHECK(path_exists(path), ErrorKind::kInput, path, ": missing",
            path_exists(join_path(folder, "adapter_model.bin"))
                ? "; adapter_model.bin is not read: save it as safetensors"
                : "; an adapter of peft has one");
  WeightFiles files(folder, kAdapterWeightsName);
  WeightMap map = adapter_map(model.options().model, number);
  map.check(files);
  std::map<std::string_view, const ParamMapping*> mappings;
  for (const ParamMapping& mapping : map.params()) mappings[mapping.param] = &mapping;
  for (const Param* param : model.store().params()) {
    auto found = mappings.find(param->name);
    if (found == mappings.end()) continue;
    StoredParam stored(*found->second, files);
    KeptPart part(model, *param);
    for (const KeptPart::Run& run : part.runs()) stored.read(run.elements, part.dtype(), run.out);
    part.store();
  }
  set_opposite_factors(model, number);
}

void load_adapter(Engine& engine, const std::string& folder) {
  load_adapter(engine.model(), folder);
  engine.weights_written();
}

namespace {

// A trained factor with its opposite behind it: as further rows of A, and further columns of B.
std::vector<std::byte> joined(const Shape& shape, bool columns, std::span<const std::byte> first,
                              std::span<const std::byte> second) {
  std::vector<std::byte> out;
  const std::size_t pieces = columns ? static_cast<std::size_t>(shape[0]) : 1;
  const std::size_t size = first.size() / pieces;
  for (std::size_t i = 0; i < pieces; ++i) {
    for (std::span<const std::byte> from : {first, second}) {
      auto piece = from.subspan(i * size, size);
      out.insert(out.end(), piece.begin(), piece.end());
    }
  }
  return out;
}

// The tensors of a folder. peft wants the copy of a tied embedding a second time, as the head.
WeightMap folder_map(const ModelConfig& model) {
  std::vector<ParamMapping> out = adapter_map(model).params();
  if (copies_tied_embedding(model)) {
    auto tied = std::ranges::find_if(out, [](const ParamMapping& mapping) {
      return mapping.param.starts_with("embedding.word");
    });
    ParamMapping head = *tied;
    auto is_head = [](const std::string& name) {
      return name.ends_with("lm_head.weight") || name.ends_with("embed_out.weight");
    };
    const std::vector<std::string>& names = head.tensors.front().other_names;
    auto name = std::ranges::find_if(names, is_head);
    if (name != names.end()) {
      head.tensors.front().name = *name;
      out.push_back(std::move(head));
    }
  }
  return {std::move(out), kAdapterConfigName};
}

// PiSSA's adapter as one of twice the rank, for the model as it was before: peft's conversion.
class AdapterWriter {
 public:
  AdapterWriter(const std::string& path, const std::vector<ExportTensor>& tensors,
                const std::vector<ExportTensor>& opposites) {
    for (const ExportTensor& tensor : opposites) doubled_.insert(tensor.spec.name);
    std::vector<TensorSpec> specs;
    for (const ExportTensor& tensor : tensors) {
      specs.push_back(tensor.spec);
      if (doubled_.contains(tensor.spec.name)) specs.back().shape[dim(tensor)] *= 2;
    }
    writer_ = std::make_unique<SafetensorsWriter>(path, specs);
  }
  void add(const ExportTensor& tensor, std::span<const std::byte> bytes) {
    if (doubled_.empty()) return writer_->write(tensor.spec.name, bytes);
    kept_[tensor.spec.name].assign(bytes.begin(), bytes.end());
  }
  void add_opposite(const ExportTensor& tensor, std::span<const std::byte> bytes) {
    std::vector<std::byte>& first = kept_.at(tensor.spec.name);
    first = joined(tensor.spec.shape, dim(tensor) == 1, first, bytes);
  }
  void commit() {
    for (const TensorSpec& spec : writer_->tensors()) {
      if (!doubled_.empty()) writer_->write(spec.name, kept_.at(spec.name));
    }
    writer_->commit();
  }

 private:
  static int dim(const ExportTensor& tensor) {
    return tensor.spec.name.ends_with(".lora_B.weight") ? 1 : 0;
  }

  std::unique_ptr<SafetensorsWriter> writer_;
  std::set<std::string> doubled_;
  std::map<std::string, std::vector<std::byte>> kept_;  // until their opposites are there
};

}  // namespace

void export_adapter(RankModel& model, const std::string& folder, const std::string& base) {
  const ModelConfig& config = model.options().model;
  const Dtype dtype = model.options().dtype;
  const WeightMap map = folder_map(config), opposite = map_of(config, 0, true);
  const std::vector<ExportTensor> tensors = export_tensors(map, dtype);
  const std::vector<ExportTensor> opposites = export_tensors(opposite, dtype);
  std::unique_ptr<AdapterWriter> writer;
  if (model.mesh().world().rank() == 0) {
    make_directories(folder);
    writer =
        std::make_unique<AdapterWriter>(join_path(folder, kAdapterWeightsName), tensors, opposites);
  }
  constexpr auto kValue = ParamGather::What::kValue;
  gather_tensors(model, kValue, map, tensors,
                 [&](const ExportTensor& tensor, std::span<const std::byte> bytes) {
                   writer->add(tensor, bytes);
                 });
  gather_tensors(model, kValue, opposite, opposites,
                 [&](const ExportTensor& tensor, std::span<const std::byte> bytes) {
                   writer->add_opposite(tensor, bytes);
                 });
  if (!writer) return;
  writer->commit();
  write_file(join_path(folder, kAdapterConfigName), adapter_config_text(config, base));
}

}  // namespace bev
