#include "checkpoint/megatron/written_tensors.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/error.h"
#include "bridge/torch/pickle_writer.h"
#include "checkpoint/megatron/model_tensors.h"

namespace bev {

namespace {

constexpr std::string_view kLayers = "decoder.layers.";
constexpr std::string_view kExperts = ".mlp.experts.linear_fc";

bool replace_end(std::string& name, std::string_view from, std::string_view to) {
  if (!name.ends_with(from)) return false;
  name.replace(name.size() - from.size(), from.size(), to);
  return true;
}

// "decoder.layers.3.x": 3.
std::optional<std::int64_t> layer_of(std::string_view name) {
  if (!name.starts_with(kLayers)) return std::nullopt;
  name.remove_prefix(kLayers.size());
  std::int64_t layer = 0;
  auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), layer);
  bool good = error == std::errc() && end != name.data() + name.size() && *end == '.';
  return good ? std::optional(layer) : std::nullopt;
}

}  // namespace

// Layers are stacked unless they differ.
WrittenNames::WrittenNames(const ModelConfig& model, bool transformer_engine)
    : model_(model),
      transformer_engine_(transformer_engine),
      stacked_(!model.moe.any() || !model.has_dense_layers()) {}

// Norms belong to the linear layer after them. Transformer Engine keeps those that no such layer
// follows directly: before experts, and before the projections to latents.
std::string WrittenNames::module_name(const std::string& param) const {
  std::string name = param;
  std::int64_t layer = layer_of(param).value_or(model_.num_layers - 1);
  bool latent = model_.multi_latent_attention, te = transformer_engine_;
  for (const char* kind : {"weight", "bias"}) {
    auto norm = [&](std::string_view from, std::string_view to) {
      return replace_end(name, concat(from, ".", kind), concat(to, ".layer_norm_", kind));
    };
    bool fused = !te || !latent;
    if (fused && norm(".input_layernorm", ".self_attention.linear_qkv")) return name;
    bool dense = !te || !model_.has_experts(layer);
    if (dense && norm(".pre_mlp_layernorm", ".mlp.linear_fc1")) return name;
    if (te && latent && norm(".q_layernorm", ".linear_q_up_proj")) return name;
    if (te && latent && norm(".kv_layernorm", ".linear_kv_up_proj")) return name;
  }
  replace_end(name, ".shared_experts.gate.weight", ".shared_experts.gate_weight");
  std::size_t experts = name.find(kExperts);
  if (experts != std::string::npos) {
    name.replace(experts, kExperts.size(), ".mlp.experts.experts.linear_fc");
  }
  return name;
}

WrittenPlace WrittenNames::place(const std::string& param) const {
  std::string name = module_name(param);
  std::optional<std::int64_t> layer = layer_of(name);
  if (!stacked_ || !layer) return {name, {}, {}};
  std::size_t dot = name.find('.', kLayers.size());
  return {concat(kLayers, name.substr(dot + 1)), {*layer}, {model_.num_layers}};
}

// "MODULE._extra_state/shard_3.5_24.64": indices and numbers of layers and experts.
std::string WrittenNames::extra_key(const WrittenPlace& module, std::int64_t expert) const {
  std::vector<std::string> at, of;
  for (std::int64_t index : module.lead) at.push_back(concat(index));
  for (std::int64_t dim : module.dims) of.push_back(concat(dim));
  if (expert >= 0) {
    at.push_back(concat(expert));
    of.push_back(concat(model_.moe.num_experts));
  }
  if (at.empty()) {
    at.push_back("0");
    of.push_back("1");
  }
  return concat(module.name, "._extra_state/shard_", join(at, "."), "_", join(of, "."));
}

std::vector<std::string> WrittenNames::extra_states(const std::vector<std::string>& params) const {
  constexpr std::string_view kWeight = ".weight";
  std::vector<std::string> keys;
  for (const std::string& param : params) {
    WrittenPlace module = place(param);
    if (!module.name.ends_with(kWeight)) continue;
    module.name.resize(module.name.size() - kWeight.size());
    std::string_view last = std::string_view(module.name).substr(module.name.rfind('.') + 1);
    bool linear = last.starts_with("linear_") || last == "eh_proj";
    bool norm = transformer_engine_ && last.find("layernorm") != std::string_view::npos;
    if (!linear && !norm) continue;
    bool experts = module.name.find(".mlp.experts.experts.") != std::string::npos;
    for (std::int64_t i = 0; experts && i < model_.moe.num_experts; ++i) {
      keys.push_back(extra_key(module, i));
    }
    if (!experts) keys.push_back(extra_key(module, -1));
    if (transformer_engine_ && replace_end(module.name, ".linear_proj", ".core_attention")) {
      keys.push_back(extra_key(module, -1));
    }
  }
  return keys;
}

void add_written_parts(const ModelConfig& model, const WrittenPlace& place,
                       const std::string& prefix, const std::string& param, const PartSource& from,
                       Dtype dtype, std::size_t part_bytes, std::vector<OutputPart>& out) {
  const Box& whole = from.box;
  std::vector<RowRun> runs;
  if (whole.ndim() > 0) runs = megatron_rows(model, param, whole.end[0]);
  std::ranges::sort(runs, {}, &RowRun::theirs);
  for (const Box& local : boxes_within(whole.shape(), size_of(dtype), part_bytes)) {
    OutputPart part{prefix + place.name, {}, dtype, {}};
    std::vector<std::int64_t> begin = place.lead, end;
    for (std::int64_t index : place.lead) end.push_back(index + 1);
    for (int i = 0; i < local.ndim(); ++i) {
      begin.push_back(local.begin[i]);
      end.push_back(local.end[i]);
    }
    part.box = {Shape(begin), Shape(end)};
    if (runs.size() <= 1) part.sources.push_back({from.tensor, local});
    for (std::size_t i = 0; runs.size() > 1 && i < runs.size(); ++i) {
      Range rows = local.dim(0);
      std::int64_t first = std::max(rows.begin, runs[i].theirs),
                   last = std::min(rows.end, runs[i].theirs + runs[i].count);
      if (first >= last) continue;
      Box source = local;
      std::int64_t shift = runs[i].begin - runs[i].theirs;
      source.set(0, {first + shift, last + shift});
      part.sources.push_back({from.tensor, source});
    }
    out.push_back(std::move(part));
  }
}

namespace {

constexpr std::string_view kMetadataModule = "torch.distributed.checkpoint.metadata";
constexpr std::string_view kStorageModule = "torch.distributed.checkpoint.filesystem";

class MetadataPickle {
 public:
  void put_size(const Shape& shape) {
    out.begin_call("torch", "Size");
    out.begin_tuple();
    out.integers(shape.dims());
    out.end_tuple();
    out.end_call();
  }

  // TensorProperties, whose state is (dtype, layout, requires_grad, memory format, pin_memory).
  void put_properties(Dtype dtype) {
    out.begin_object(kMetadataModule, "TensorProperties");
    out.begin_tuple();
    out.global("torch", torch_type_name(dtype));
    out.begin_call("torch.serialization", "_get_layout");
    out.begin_tuple();
    out.text("torch.strided");
    out.end_tuple();
    out.end_call();
    out.boolean(false);
    out.begin_call(kMetadataModule, "_MEM_FORMAT_ENCODING");
    out.integers(std::vector<std::int64_t>{0});
    out.end_call();
    out.boolean(false);
    out.end_tuple();
    out.end_object();
  }

  void put_tensor(const WrittenTensor& tensor, const std::vector<const Box*>& chunks) {
    out.begin_object(kMetadataModule, "TensorStorageMetadata");
    out.begin_dict();
    out.text("properties");
    put_properties(tensor.dtype);
    out.text("size");
    put_size(tensor.shape);
    out.text("chunks");
    out.begin_list();
    for (const Box* box : chunks) {
      out.begin_object(kMetadataModule, "ChunkStorageMetadata");
      out.begin_dict();
      out.text("offsets");
      put_size(box->begin);
      out.text("sizes");
      put_size(box->shape());
      out.end_dict();
      out.end_object();
    }
    out.end_list();
    out.end_dict();
    out.end_object();
  }

  // MetadataIndex(name, offset, index) and _StorageInfo(file, offset, length).
  void put_place(const std::string& name, const Box* box, const WrittenObject& place) {
    out.begin_object(kMetadataModule, "MetadataIndex");
    out.begin_dict();
    out.text("fqn");
    out.text(name);
    out.text("offset");
    if (box != nullptr) {
      put_size(box->begin);
    } else {
      out.none();
    }
    out.text("index");
    out.none();
    out.end_dict();
    out.end_object();
    out.begin_object(kStorageModule, "_StorageInfo");
    out.begin_dict();
    out.text("relative_path");
    out.text(place.file);
    out.text("offset");
    out.integer(static_cast<std::int64_t>(place.at));
    out.text("length");
    out.integer(static_cast<std::int64_t>(place.bytes));
    out.text("transform_descriptors");
    out.none();
    out.end_dict();
    out.end_object();
  }

  PickleWriter out;
};

}  // namespace

std::string distributed_metadata(const std::map<std::string, WrittenTensor>& tensors,
                                 const std::vector<PlannedFile>& files,
                                 const std::vector<WrittenFile>& written,
                                 const std::vector<WrittenObject>& objects) {
  std::map<std::string, std::vector<const Box*>> chunks;
  for (const PlannedFile& file : files) {
    for (const OutputPart& part : file.parts) chunks[part.name].push_back(&part.box);
  }
  MetadataPickle pickle;
  PickleWriter& out = pickle.out;
  out.begin_object(kMetadataModule, "Metadata");
  out.begin_dict();
  out.text("state_dict_metadata");
  out.begin_dict();
  for (const auto& [name, tensor] : tensors) {
    out.text(name);
    pickle.put_tensor(tensor, chunks[name]);
  }
  for (const WrittenObject& object : objects) {
    out.text(object.key);
    out.begin_object(kMetadataModule, "BytesStorageMetadata");
    out.begin_dict();
    out.end_dict();
    out.end_object();
  }
  out.end_dict();
  out.text("planner_data");
  out.none();
  out.text("storage_data");
  out.begin_dict();
  for (std::size_t i = 0; i < files.size(); ++i) {
    std::uint64_t at = 0;
    for (std::size_t j = 0; j < files[i].parts.size(); ++j) {
      const OutputPart& part = files[i].parts[j];
      pickle.put_place(part.name, &part.box, {"", files[i].name, at, written[i].lengths[j]});
      at += written[i].lengths[j];
    }
  }
  for (const WrittenObject& object : objects) pickle.put_place(object.key, nullptr, object);
  out.end_dict();
  out.text("storage_meta");
  out.none();
  out.text("version");
  out.text("1.0.0");
  out.end_dict();
  out.end_object();
  return out.take();
}

}  // namespace bev
