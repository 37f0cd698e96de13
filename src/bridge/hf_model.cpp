#include "bridge/hf_model.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>

#include "base/error.h"
#include "base/file.h"
#include "base/hub_id.h"
#include "bridge/nf4_load.h"
#include "bridge/weight_files.h"
#include "bridge/weight_map.h"
#include "kernels/device.h"
#include "models/families/family.h"
#include "models/families/param_mapping.h"
#include "nn/adapter.h"

namespace bev {

HfConfig read_config_json(const std::string& folder) {
  BEV_CHECK(is_directory(folder), ErrorKind::kInput, folder, ": no such folder", hub_hint(folder));
  std::string path = join_path(folder, "config.json");
  BEV_CHECK(path_exists(path), ErrorKind::kInput, path,
            ": missing; a Hugging Face model folder has one");
  return HfConfig::parse(read_file(path), path);
}

ModelConfig read_hf_config(const std::string& folder) { return from_hf(read_config_json(folder)); }

KeptPart::KeptPart(RankModel& model, const Param& param)
    : model_(model), kept_(model.store().kept_value(param)) {
  std::size_t item = size_of(dtype());
  part_.resize(static_cast<std::size_t>(kept_.range.size()) * item);
  ParamPart cut = part_of(param.split, model.mesh());
  for (const ElementRun& run : element_runs(param.shape, param.split, cut)) {
    std::int64_t begin = std::max(run.local, kept_.range.begin);
    std::int64_t end = std::min(run.local + run.count, kept_.range.end);
    if (begin >= end) continue;
    runs_.push_back({{run.global + begin - run.local, run.global + end - run.local},
                     part_.data() + static_cast<std::size_t>(begin - kept_.range.begin) * item});
  }
}

void KeptPart::store() const {
  Context& ctx = model_.ctx();
  if (!part_.empty()) ctx.kernels.device.upload(ctx.stream, part_.data(), kept_.value);
}

void load_hf_weights(RankModel& model, const std::string& folder) {
  WeightFiles files(folder);
  const ModelConfig& config = model.options().model;
  WeightMap map(config);
  // Heads that the model of the folder has not are new, and keep their initial values.
  const std::vector<std::string> absent =
      map.heads_not_in(WeightMap(read_hf_config(folder)), files);
  map.check(files, absent);
  for (const Param* param : model.store().params()) {
    const bool is_new = std::ranges::find(absent, param->name) != absent.end();
    if (is_adapter(*param) || is_new) continue;
    if (param->format == ParamFormat::kNf4) {
      load_nf4(model, *param, map.find(param->name), files);
      continue;
    }
    StoredParam stored(map.find(param->name), files);
    KeptPart part(model, *param);
    for (const KeptPart::Run& run : part.runs()) stored.read(run.elements, part.dtype(), run.out);
    part.store();
  }
}

void load_hf_weights(Engine& engine, const std::string& folder) {
  load_hf_weights(engine.model(), folder);
  engine.weights_written();
}

ParamGather::ParamGather(RankModel& model, What what) : model_(model), what_(what) {
  const ModelConfig& config = model.options().model;
  for (const Param& param : declare_params(config)) {
    params_.push_back({param.name, param.shape, param.format});
  }
  std::vector<std::int32_t> stages;
  for (const Whole& whole : params_) {
    const Param* param = held(whole.name);
    bool owned = param != nullptr && !param->copy;
    stages.push_back(owned ? static_cast<std::int32_t>(model.mesh().at().pp) : -1);
  }
  View view{stages.data(), Dtype::kI32, {static_cast<std::int64_t>(stages.size())}};
  model.mesh().world().host().all_reduce(view, Reduction::kMax, "owners").wait();
  for (std::size_t i = 0; i < stages.size(); ++i) params_[i].owner_stage = stages[i];
}

const Param* ParamGather::held(const std::string& name) const {
  for (const Param* param : model_.store().params()) {
    if (param->name == name) return param;
  }
  return nullptr;
}

const ParamGather::Whole& ParamGather::whole(const std::string& name) const {
  for (const Whole& param : params_) {
    if (param.name == name) return param;
  }
  BEV_FAIL(ErrorKind::kInternal, "gather: no parameter ", name);
}

// Gathers a parameter from the ranks that shard it.
Tensor ParamGather::gather_parts(const Param& param) {
  Context& ctx = model_.ctx();
  const Mesh& mesh = model_.mesh();
  bool experts = param.split.of_experts();
  Group& group = mesh.group(experts ? MeshGroup::kExperts : MeshGroup::kTp).host();
  WeightLease lease = what_ == What::kValue ? model_.store().local_value(param)
                                            : model_.store().local_gradient(param);
  Tensor mine(host_, lease.view.dtype, lease.view.shape, "gather");
  ctx.kernels.device.fetch(ctx.stream, lease.view, mine.view().data).wait();
  if (param.split.whole() || group.size() == 1) return mine;
  Tensor out(host_, mine.dtype(), param.shape, "gather");
  auto part_at = [&](int member) {
    return part_of(param.split, mesh.shape(), coordinate_of(mesh.shape(), member));
  };
  // Members that hold the same part are gathered too.
  std::int64_t total = 0;
  for (int member : group.members()) {
    total += param.split.local_shape(param.shape, part_at(member)).numel();
  }
  Tensor parts(host_, mine.dtype(), {total}, "gather");
  group.all_gather(mine.view().flat(), parts, param.name).wait();
  std::size_t item = size_of(mine.dtype());
  const auto* from = static_cast<const std::byte*>(parts.view().data);
  auto* to = static_cast<std::byte*>(out.view().data);
  for (int member : group.members()) {
    ParamPart cut = part_at(member);
    for (const ElementRun& run : element_runs(param.shape, param.split, cut)) {
      std::memcpy(to + static_cast<std::size_t>(run.global) * item,
                  from + static_cast<std::size_t>(run.local) * item,
                  static_cast<std::size_t>(run.count) * item);
    }
    std::int64_t count = param.split.local_shape(param.shape, cut).numel();
    from += static_cast<std::size_t>(count) * item;
  }
  return out;
}

Tensor ParamGather::gather(const std::string& name) {
  const Whole& param = whole(name);
  const Mesh& mesh = model_.mesh();
  Group& world = mesh.world().host();
  Tensor value;
  if (mesh.at().pp == param.owner_stage) value = gather_parts(*held(name));
  auto source = static_cast<int>(rank_of(mesh.shape(), {0, 0, 0, param.owner_stage}));
  if (source == 0) return world.rank() == 0 ? value : Tensor();
  if (world.rank() == source) world.send(value, 0, 0, name).wait();
  if (world.rank() != 0) return {};
  const StoreOptions& store = model_.store().options();
  Dtype dtype = what_ == What::kValue ? store.dtype : store.grad_dtype;
  value = Tensor(host_, stored_dtype(param.format, dtype), param.shape, "gather");
  world.receive(value, source, 0, name).wait();
  return value;
}

void gather_tensors(RankModel& model, ParamGather::What what, const WeightMap& map,
                    std::span<const ExportTensor> tensors, ExportSink sink) {
  ParamGather gather(model, what);
  const bool first = model.mesh().world().rank() == 0;
  std::size_t next = 0;
  for (std::size_t i = 0; i < map.params().size(); ++i) {
    const ParamMapping& mapping = map.params()[i];
    Tensor value = gather.gather(mapping.param);
    for (; next < tensors.size() && tensors[next].param == i; ++next) {
      if (!first) continue;
      const TensorSpec& spec = tensors[next].spec;
      std::vector<std::byte> part(spec.bytes());
      split_param(mapping, tensors[next].part, value.view().data, value.dtype(), spec.dtype,
                  part.data());
      sink(tensors[next], part);
    }
  }
}

std::vector<ExportFile> companion_files(const std::string& folder) {
  std::vector<ExportFile> files;
  for (std::string_view name : companion_names()) {
    std::string path = join_path(folder, name);
    if (path_exists(path)) files.push_back({std::string(name), read_file(path)});
  }
  std::string more = join_path(folder, kMoreTemplates);
  for (const std::string& name :
       is_directory(more) ? list_directory(more) : std::vector<std::string>()) {
    if (!name.ends_with(".jinja")) continue;
    files.push_back({join_path(kMoreTemplates, name), read_file(join_path(more, name))});
  }
  return files;
}

namespace {
// A language model that got a head for sequence classification keeps its other settings.
void take_labels(const HfConfig& from, HfConfig& to) {
  to.set("architectures", from.texts("architectures"));
  for (const char* names : {"id2label", "label2id"}) to.set(names, *from.object(names));
  if (from.has("problem_type")) to.set("problem_type", from.text("problem_type"));
  if (from.has("pad_token_id")) to.set("pad_token_id", from.integer("pad_token_id", -1));
}
}  // namespace

std::string export_config(const ModelConfig& model, Dtype dtype, const std::string& came_from) {
  HfConfig fresh = to_hf(model, dtype);
  if (came_from.empty()) return fresh.dump();
  HfConfig original = read_config_json(came_from);
  if (model.num_labels > 0 && from_hf(original).num_labels == 0) take_labels(fresh, original);
  bool same = differing_fields(canonical(from_hf(original)), canonical(model)).empty();
  if (!same) return fresh.dump();
  constexpr std::array<std::string_view, 2> kKeys = {"dtype", "torch_dtype"};
  for (std::string_view key : kKeys) {
    if (original.has(key) || key == "dtype") original.set(key, fresh.text("dtype", "float32"));
  }
  // The exported weights are not quantised.
  if (original.has("quantization_config")) original.set_null("quantization_config");
  return original.dump();
}

std::vector<std::string> read_label_names(const std::string& folder) {
  const HfConfig config = read_config_json(folder);
  const std::optional<HfConfig> names = config.object("id2label");
  std::vector<std::string> out;
  while (names && names->has(concat(out.size()))) out.push_back(names->text(concat(out.size())));
  return out;
}

void set_label_names(std::string& config, const std::vector<std::string>& names) {
  if (names.empty()) return;
  HfConfig hf = HfConfig::parse(config), by_number, by_name;
  for (std::size_t i = 0; i < names.size(); ++i) {
    by_number.set(concat(i), names[i]);
    by_name.set(names[i], static_cast<std::int64_t>(i));
  }
  hf.set("id2label", by_number);
  hf.set("label2id", by_name);
  config = hf.dump();
}

void export_hf(RankModel& model, const std::string& folder, const std::vector<ExportFile>& files) {
  const ModelConfig& config = model.options().model;
  WeightMap map(config);
  std::unique_ptr<WeightFilesWriter> writer;
  std::vector<ExportTensor> tensors = export_tensors(map, model.options().dtype);
  if (model.mesh().world().rank() == 0) {
    std::vector<TensorSpec> specs;
    for (const ExportTensor& tensor : tensors) specs.push_back(tensor.spec);
    writer = std::make_unique<WeightFilesWriter>(folder, specs);
  }
  gather_tensors(model, ParamGather::What::kValue, map, tensors,
                 [&](const ExportTensor& tensor, std::span<const std::byte> bytes) {
                   writer->write(tensor.spec.name, bytes);
                 });
  if (!writer) return;
  for (const ExportFile& file : files) writer->write_text(file.name, file.content);
  writer->commit();
}

namespace {
std::string with_nf4_config(const ExportFile& file, std::span<const ExportTensor> tensors) {
  HfConfig config = HfConfig::parse(file.content, file.name);
  config.set("quantization_config", nf4_config(tensors));
  return config.dump();
}
}  // namespace

void export_hf(const WeightMap& map, ParamSource& source, const ExportTarget& target,
               const std::vector<ExportFile>& files) {
  std::vector<ExportTensor> tensors = export_tensors(map, source, target.dtype);
  if (target.nf4) tensors = nf4_export_tensors(map, std::move(tensors), *target.nf4);
  std::vector<TensorSpec> specs;
  for (const ExportTensor& tensor : tensors) specs.push_back(tensor.spec);
  WeightFilesWriter writer(target.folder, specs);
  export_weights(map, source, tensors, writer, target.threads);
  for (const ExportFile& file : files) {
    bool config = target.nf4 && file.name == "config.json";
    writer.write_text(file.name, config ? with_nf4_config(file, tensors) : file.content);
  }
  writer.commit();
}

void convert_hf(const std::string& from, const ExportTarget& to) {
  convert_hf(from, to, [](std::vector<ExportFile>&) {});
}

void convert_hf(const std::string& from, const ExportTarget& to,
                FunctionRef<void(std::vector<ExportFile>& files)> amend) {
  ModelConfig model = read_hf_config(from);
  WeightFiles files(from);
  WeightMap map(model);
  map.check(files);
  WeightFilesSource source(files);
  Dtype dtype = to.dtype.value_or(source.dtype(map.params().front(), 0));
  std::vector<ExportFile> companions = companion_files(from);
  companions.push_back({"config.json", export_config(model, dtype, from)});
  amend(companions);
  export_hf(map, source, to, companions);
}

}  // namespace bev
