#include "checkpoint/megatron/megatron_folder.h"

#include <algorithm>
#include <deque>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "base/json_check.h"
#include "checkpoint/megatron/bucket_state.h"
#include "checkpoint/megatron/distributed_files.h"
#include "checkpoint/megatron/flattened_state.h"
#include "checkpoint/megatron/model_tensors.h"
#include "checkpoint/megatron/rank_files.h"
#include "checkpoint/megatron/rank_params.h"
#include "checkpoint/megatron/run_arguments.h"
#include "checkpoint/megatron/tensor_names.h"
#include "checkpoint/owned_state.h"
#include "checkpoint/step_folders.h"

namespace bev {

namespace {

constexpr std::string_view kRankPrefix = "mp_rank_", kDataSuffix = ".distcp";
constexpr char kCommonName[] = "common.pt";
constexpr const char* kNoRandomState =
    "random numbers here depend on seed and step, there is no state";

// Names in a step's folder, by format.
struct Names {
  bool metadata = false, common = false, data = false, ranks = false;

  explicit Names(const std::string& folder) {
    if (!is_directory(folder)) return;
    for (const std::string& name : list_directory(folder)) {
      metadata |= name == kDistributedMetadata;
      common |= name == kCommonName;
      data |= name.ends_with(kDataSuffix);
      ranks |= name.starts_with(kRankPrefix);
    }
  }
  bool any() const { return metadata || common || data || ranks; }
};

void check_names(const Names& names, const std::string& folder) {
  BEV_CHECK(!names.ranks || !(names.metadata || names.common || names.data), ErrorKind::kInput,
            folder, ": mixes two of Megatron's formats: folders ", kRankPrefix, "NN and files *",
            kDataSuffix, "; remove those of the other save");
  BEV_CHECK(names.ranks || names.metadata, ErrorKind::kInput, folder, ": has no ",
            kDistributedMetadata,
            ", which Megatron writes last: its save was not completed, or the file was not copied");
}

// What a distributed folder has besides tensors.
struct Common {
  std::unique_ptr<MappedFile> file;
  std::vector<std::unique_ptr<TorchArchive>> archives;
  std::deque<PickleValue> made;
  std::deque<std::string> keys;  // of `made`
  CommonState state;
};

// An object that is saved alone, as fsdp_dtensor does; null if there is none.
const PickleValue* load_object(DistributedFiles& files, const std::string& name, Common& out) {
  std::unique_ptr<TorchArchive> archive = files.object(name);
  if (!archive) return nullptr;
  out.archives.push_back(std::move(archive));
  return &out.archives.back()->root();
}

// A dict whose values are saved alone, as "NAME.KEY"; null if there are none.
const PickleValue* load_dict(DistributedFiles& files, const std::string& name, Common& out) {
  PickleValue dict;
  dict.kind = PickleKind::kDict;
  std::string prefix = name + ".";
  for (const std::string& object : files.objects()) {
    if (!object.starts_with(prefix)) continue;
    const PickleValue* value = load_object(files, object, out);
    PickleValue& key = out.made.emplace_back();
    key.kind = PickleKind::kText;
    key.text = out.keys.emplace_back(object.substr(prefix.size()));
    dict.items.push_back(&key);
    dict.items.push_back(value);
  }
  return dict.items.empty() ? nullptr : &out.made.emplace_back(std::move(dict));
}

// The optimizer's part without tensors, of the first model-parallel rank; its key is
// "[chained_0.]optimizer.distributed.dp_group_idx_0.NAME/shard_0_1".
const PickleValue* load_optimizer_part(DistributedFiles& files, std::string_view part,
                                       Common& out) {
  std::string wanted = concat("optimizer.distributed.dp_group_idx_0.", part, "/");
  for (const std::string& name : files.objects()) {
    if (name.find(wanted) != std::string::npos) return load_object(files, name, out);
  }
  return nullptr;
}

Common read_common(const std::string& folder, DistributedFiles& files) {
  Common out;
  std::string path = join_path(folder, kCommonName);
  const PickleValue* root = nullptr;
  if (path_exists(path)) {
    out.file = std::make_unique<MappedFile>(path);
    out.archives.push_back(std::make_unique<TorchArchive>(out.file->bytes(), path));
    root = &out.archives.back()->root();
  }
  auto find = [&](const char* name) {
    const PickleValue* value = root != nullptr ? root->find(name) : nullptr;
    return value != nullptr ? value : load_object(files, name, out);
  };
  out.state.args = find("args");
  out.state.iteration = find("iteration");
  out.state.scheduler = find("opt_param_scheduler");
  if (out.state.scheduler == nullptr) {
    out.state.scheduler = load_dict(files, "opt_param_scheduler", out);
  }
  out.state.optimizer = find("optimizer");
  if (out.state.optimizer == nullptr) {
    out.state.optimizer = load_optimizer_part(files, "optimizer", out);
  }
  if (!out.archives.empty()) out.state.tensors = out.archives.front().get();
  BEV_CHECK(out.state.iteration != nullptr, ErrorKind::kInput, path,
            path_exists(path) ? ": has no iteration" : ": is missing: the checkpoint is not whole");
  return out;
}

ForeignTensors plain_names(const ForeignTensors& tensors) {
  ForeignTensors out;
  for (const auto& [name, tensor] : tensors) {
    std::string plain = plain_name(name);
    if (!plain.empty()) out.emplace(plain, tensor);
  }
  return out;
}

constexpr std::string_view kEmbedding = "embedding.word_embeddings.weight";

// The model of the arguments and the configuration; on failure, why not.
void describe(const CommonState& common, const ForeignTensors& tensors, const std::string& where,
              MegatronFolder& out, std::optional<ModelConfig>& model) {
  if (common.args == nullptr) {
    out.notes.unreadable = concat(where, ": has no arguments of its run (args)");
    return;
  }
  out.notes.layout = layout_of_arguments(*common.args);
  auto embedding = tensors.find(kEmbedding);
  std::int64_t rows = embedding == tensors.end() || embedding->second.shape.ndim() == 0
                          ? 0
                          : embedding->second.shape[0];
  try {
    model = model_of_arguments(*common.args, rows, where);
    out.manifest.config = config_of_arguments(*common.args, *model, out.notes.ignored);
  } catch (const Error& error) {
    out.notes.unreadable = error.what();
  }
}

// Tensors that are not the model's keep their names, except optimizer state.
void add_other_tensors(const ForeignTensors& tensors, const std::set<std::string>& used,
                       MegatronFolder& out) {
  for (const auto& [name, tensor] : tensors) {
    if (used.contains(name)) continue;
    if (name.starts_with("optimizer.")) {
      out.notes.ignored.push_back(concat(name, ": optimizer state of no parameter of the model"));
      continue;
    }
    out.manifest.tensors[name] = {tensor.dtype, tensor.shape};
    std::vector<Piece>& pieces = out.pieces[name];
    for (const ForeignChunk& chunk : tensor.chunks) {
      pieces.push_back({chunk.box, chunk.box, chunk.first, chunk.file, chunk.key});
    }
  }
}

// Whether main weights are the weights, as far as the first elements of each parameter show.
bool main_weights_fit(const ModelTensors& model, PieceFiles& files) {
  for (const auto& [name, tensor] : model.tensors) {
    auto main = model.tensors.find(main_name(name));
    if (!is_weight(name) || main == model.tensors.end()) continue;
    constexpr std::int64_t kCompared = 256;
    Range range{0, std::min(kCompared, tensor.shape.numel())};
    for (const Box& box : boxes_of_range(tensor.shape, range)) {
      auto count = static_cast<std::size_t>(box.numel()) * size_of(tensor.dtype);
      std::vector<std::byte> weights(count), rounded(count);
      read_pieces(files, model.pieces.find(name)->second, {name, tensor.dtype, box}, tensor.dtype,
                  weights.data());
      read_pieces(files, model.pieces.find(main->first)->second,
                  {main->first, main->second.dtype, box}, tensor.dtype, rounded.data());
      if (weights != rounded) return false;
    }
  }
  return true;
}

// With state in buckets, whose order depends on the modules of the model; what cannot be read is
// left out, with a note.
ModelTensors map_buckets(const ModelConfig& model, const MegatronLayout& layout,
                         const ForeignTensors& tensors, const std::string& where,
                         MegatronFolder& out) {
  for (bool fused_norms : {true, false}) {
    for (bool grouped_experts : {true, false}) {
      ForeignTensors by_parameter =
          bucket_state(model, layout, {fused_norms, grouped_experts}, tensors);
      if (by_parameter.empty()) continue;
      ModelTensors mapped = model_tensors(model, by_parameter, where);
      if (!main_weights_fit(mapped, *out.files)) continue;
      for (const auto& [name, tensor] : tensors) {
        if (name.find("optimizer.distributed.") != std::string::npos) mapped.used.insert(name);
      }
      return mapped;
    }
  }
  out.notes.ignored.push_back(
      "optimizer state: its buckets (dp_reshardable) do not fit the model as Megatron makes it; "
      "save once with --dist-ckpt-optim-fully-reshardable");
  return model_tensors(model, tensors, where);
}

// State whose main weights are not the weights belongs to other elements: Megatron Core up to 0.16
// saves fully_reshardable state shifted by the padding of earlier buckets.
void drop_unfit_state(ModelTensors& mapped, MegatronFolder& out) {
  if (main_weights_fit(mapped, *out.files)) return;
  std::erase_if(mapped.tensors, [](const auto& entry) { return !is_weight(entry.first); });
  std::erase_if(mapped.pieces, [](const auto& entry) { return !is_weight(entry.first); });
  out.notes.ignored.push_back(
      "optimizer state: its main weights are not the weights, so it belongs to other elements; "
      "Megatron Core up to 0.16 writes fully_reshardable state so if gradients have several "
      "buckets (save dp_reshardable); --no-load-optim goes on with the weights alone");
}

void map_tensors(const ForeignTensors& tensors, const CommonState& common,
                 const std::optional<ModelConfig>& model, const std::string& where,
                 MegatronFolder& out) {
  std::set<std::string> used;
  if (model) {
    ModelTensors mapped =
        has_bucket_state(tensors)
            ? map_buckets(*model, MegatronLayout::of_arguments(*common.args), tensors, where, out)
            : model_tensors(*model, tensors, where);
    drop_unfit_state(mapped, out);
    out.manifest.tensors = std::move(mapped.tensors);
    out.pieces = std::move(mapped.pieces);
    used = std::move(mapped.used);
  }
  add_other_tensors(tensors, used, out);
}

// Objects that are not used, by kind.
void note_objects(const DistributedFiles& files, ForeignNotes& notes) {
  std::size_t random = 0, extra = 0, rerun = 0;
  for (const std::string& name : files.objects()) {
    random += name.find("rng_state") != std::string::npos ? 1 : 0;
    extra += name.find("_extra_state") != std::string::npos ? 1 : 0;
    rerun += name.find("rerun_state_machine") != std::string::npos ? 1 : 0;
  }
  auto note = [&](std::size_t count, const char* what, const char* why) {
    if (count > 0) notes.ignored.push_back(concat(what, " (", count, "): ", why));
  };
  note(random, "rng_state", kNoRandomState);
  note(extra, "_extra_state", "scales of Transformer Engine, which begin anew");
  note(rerun, "rerun_state_machine",
       "there is none here; --nan-policy decides what a bad step does");
  for (const auto& [name, type] : files.unread()) {
    notes.ignored.push_back(concat(name, ": of type ", type, ", which is not read"));
  }
}

// A step's folder is named by its iteration.
void check_iteration(const std::string& folder, std::int64_t iteration) {
  std::filesystem::path path = std::filesystem::path(folder).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  std::optional<std::int64_t> named = parse_step(path.filename().native());
  BEV_CHECK(!named || *named == iteration, ErrorKind::kInput, folder, ": holds iteration ",
            iteration, ": files of two saves are mixed, or the folder was renamed");
}

// Data that no tensor of the metadata lies in are of another save.
void check_no_other_data(const std::string& folder, const DistributedFiles& files) {
  for (const std::string& name : list_directory(folder)) {
    bool known = std::ranges::find(files.files(), name, &DistributedFiles::File::name) !=
                 files.files().end();
    if (!name.ends_with(kDataSuffix) || known) continue;
    std::string path = join_path(folder, name);
    BEV_CHECK(MappedFile(path).bytes().empty(), ErrorKind::kInput, path,
              ": is no part of the save that ", kDistributedMetadata,
              " describes: the folder mixes two saves; remove the files of the other");
  }
}

MegatronFolder open_distributed(const std::string& folder, bool common_file) {
  MegatronFolder out;
  auto files = std::make_unique<DistributedFiles>(folder);
  check_no_other_data(folder, *files);
  Common common = read_common(folder, *files);
  out.notes.format = common_file ? "Megatron torch_dist" : "Megatron fsdp_dtensor";
  out.manifest.program_version = out.notes.format;
  out.manifest.state = state_of(common.state);
  check_iteration(folder, out.manifest.state.iteration);
  ForeignTensors tensors = unflattened(plain_names(files->tensors()), folder);
  std::optional<ModelConfig> model;
  describe(common.state, tensors, common_file ? join_path(folder, kCommonName) : folder, out,
           model);
  note_objects(*files, out.notes);
  for (const DistributedFiles::File& file : files->files()) {
    out.manifest.shards.push_back({file.name, file.bytes, {}, {}});
  }
  out.files = std::move(files);
  map_tensors(tensors, common.state, model, folder, out);
  return out;
}

// What all ranks have alike, of the first.
CommonState common_of(const RankFiles& files) {
  const RankFiles::RankFile& first = files.ranks().front();
  const PickleValue& root = files.root(first.model);
  CommonState out;
  out.args = root.find("args");
  out.iteration = root.find("iteration");
  out.scheduler = root.find("opt_param_scheduler");
  out.optimizer = root.find("optimizer");
  out.tensors = &files.archive(first.model);
  std::string path = files.files()[first.model].name;
  const PickleValue* version = root.find("checkpoint_version");
  double number = version != nullptr ? version->as_number().value_or(0) : 0;
  constexpr double kVersion = 3;  // since then, fused queries, keys and values lie by group
  BEV_CHECK(number >= kVersion, ErrorKind::kInput, path, ": is of checkpoint_version ", number,
            "; 3.0 and later are read");
  BEV_CHECK(out.iteration != nullptr, ErrorKind::kInput, path, ": has no iteration");
  return out;
}

// Files of ranks may be of different saves.
void check_same_iteration(const RankFiles& files, const std::string& folder) {
  auto iteration = [&](const RankFiles::RankFile& rank) {
    const PickleValue* value = files.root(rank.model).find("iteration");
    return value != nullptr ? value->as_int() : std::nullopt;
  };
  const RankFiles::RankFile& first = files.ranks().front();
  for (const RankFiles::RankFile& rank : files.ranks()) {
    BEV_CHECK(iteration(rank) == iteration(first), ErrorKind::kInput,
              join_path(folder, files.files()[rank.model].name), ": is of iteration ",
              iteration(rank).value_or(-1), ", ", files.files()[first.model].name, " of ",
              iteration(first).value_or(-1), ": the folder mixes two saves");
  }
}

MegatronFolder open_ranks(const std::string& folder) {
  MegatronFolder out;
  auto files = std::make_unique<RankFiles>(folder);
  CommonState common = common_of(*files);
  out.notes.format = "Megatron torch";
  out.manifest.program_version = out.notes.format;
  out.manifest.state = state_of(common);
  check_iteration(folder, out.manifest.state.iteration);
  check_same_iteration(*files, folder);
  const PickleValue* swiglu = common.args->find("swiglu");
  const PickleValue* quick = common.args->find("quick_geglu");
  bool gated = (swiglu != nullptr && swiglu->as_int().value_or(0) != 0) ||
               (quick != nullptr && quick->as_int().value_or(0) != 0);
  ForeignTensors tensors = tensors_of_ranks(*files, gated, out.notes.ignored);
  std::optional<ModelConfig> model;
  describe(common, tensors, join_path(folder, files->files().front().name), out, model);
  out.notes.ignored.push_back(concat("rng_state (", files->ranks().size(), "): ", kNoRandomState));
  for (const RankFiles::File& file : files->files()) {
    out.manifest.shards.push_back({file.name, file.bytes, {}, {}});
  }
  out.files = std::move(files);
  map_tensors(tensors, common, model, folder, out);
  return out;
}

}  // namespace

bool is_megatron_folder(const std::string& folder) { return Names(folder).any(); }

MegatronFolder open_megatron(const std::string& folder) {
  Names names(folder);
  check_names(names, folder);
  return names.ranks ? open_ranks(folder) : open_distributed(folder, names.common);
}

}  // namespace bev
