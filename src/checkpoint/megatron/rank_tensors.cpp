// Tensors of Megatron's `torch` files under global names (rank_files.h).
#include <algorithm>
#include <set>

#include "base/divide.h"
#include "base/error.h"
#include "base/json_check.h"
#include "checkpoint/megatron/rank_files.h"
#include "checkpoint/megatron/tensor_names.h"

namespace bev {

namespace {

constexpr std::string_view kLayers = "decoder.layers.", kExperts = ".mlp.experts.";

// What is saved with a model and is no parameter.
bool is_buffer(std::string_view name) {
  return name.ends_with("expert_bias") || name.ends_with("local_tokens_per_expert");
}

// A parameter as a rank holds it, with where it is stored.
struct StoredParam {
  RankParam param;
  Dtype dtype = Dtype::kF32;
  std::string key;
};

// One model chunk of one rank.
class ChunkReader {
 public:
  ChunkReader(RankFiles& files, const RankFiles::RankFile& file, std::int64_t chunk, bool gated,
              const MegatronRank& rank)
      : files_(files), file_(file), rank_(rank), gated_(gated) {
    rank_.chunk = chunk;
  }

  // Parameters and buffers in the order of the modules. `layers` and `experts` are those of the
  // whole model.
  std::vector<StoredParam> read(const PickleValue& model, std::int64_t layers,
                                std::int64_t experts) {
    LayerRange range = layers_of(files_.layout(), rank_, layers);
    std::vector<StoredParam> out;
    for (const auto& [key, value] : model.pairs()) {
      if (!key->is(PickleKind::kText) || !TorchArchive::is_tensor(*value)) continue;
      std::string name(key->text);
      if (name.ends_with("_extra_state")) continue;
      RankFiles::Added added = files_.add(file_.model, *value, name);
      rename(name, range.begin, experts / files_.layout().ep * rank_.ep);
      out.push_back({globally(std::move(name), added.shape), added.dtype, std::move(added.key)});
    }
    return out;
  }

 private:
  void rename(std::string& name, std::int64_t first_layer, std::int64_t first_expert) const {
    if (name.starts_with(kLayers)) shift_number(name, kLayers, first_layer);
    name_expert(name, first_expert);
    bool transposed = name.ends_with(".experts.weight1") || name.ends_with(".experts.weight2");
    BEV_CHECK(!transposed, ErrorKind::kInput, files_.files()[file_.model].name, ": ", name,
              " is of GroupedMLP, which stores experts transposed; save as torch_dist once");
  }

  RankParam globally(std::string name, const std::vector<std::int64_t>& local) const {
    bool expert = name.find(kExperts) != std::string::npos;
    const MegatronLayout& layout = files_.layout();
    std::int64_t parts = expert ? layout.etp : layout.tp, index = expert ? rank_.etp : rank_.tp;
    BEV_CHECK(local.size() <= Shape::kMaxDims, ErrorKind::kInput, quote(name), ": has ",
              local.size(), " dims");
    MegatronCut cut = cut_of(name, gated_);
    RankParam param{std::move(name), Shape(local), {}, expert};
    bool rows = cut == MegatronCut::kRows || cut == MegatronCut::kGatedRows;
    int dim = rows ? 0 : param.global.ndim() - 1;
    if (cut != MegatronCut::kWhole && dim >= 0) param.global[dim] *= parts;
    if (dim < 0) cut = MegatronCut::kWhole;
    param.boxes = boxes_of_cut(cut, param.global, parts, index);
    return param;
  }

  RankFiles& files_;
  const RankFiles::RankFile& file_;
  MegatronRank rank_;
  bool gated_;
};

// Optimizer state of one rank, whose parameters are those of its model chunks in order.
class StateReader {
 public:
  using Chunks = std::vector<std::vector<StoredParam>>;
  StateReader(RankFiles& files, const RankFiles::RankFile& file, const Chunks& chunks)
      : files_(files), file_(file), chunks_(chunks) {}

  struct State {
    std::string name;  // optimizer.state.exp_avg.NAME
    const RankParam* param = nullptr;
    Dtype dtype = Dtype::kF32;
    ForeignChunk stored;  // its first element
  };

  // Empty, with `problem`, if state and parameters do not fit.
  std::vector<State> read(std::string& problem) {
    const PickleValue* optimizer = files_.root(file_.model).find("optimizer");
    if (optimizer != nullptr && file_.optimizer) {
      read_buffers(files_.root(*file_.optimizer));
    } else if (optimizer != nullptr) {
      read_all(*optimizer);
    }
    problem = problem_;
    return problem_.empty() ? std::move(out_) : std::vector<State>();
  }

 private:
  void fail(std::string problem) {
    if (problem_.empty()) problem_ = std::move(problem);
  }

  // One optimizer, or those of a chain: dense parameters, then experts.
  void read_all(const PickleValue& optimizer) {
    if (optimizer.is(PickleKind::kList)) {
      for (const PickleValue* one : optimizer.items) read_one(*one);
    } else {
      read_one(optimizer);
    }
  }

  void read_one(const PickleValue& optimizer) {
    const PickleValue* inner = optimizer.find("optimizer");
    const PickleValue& torch = inner != nullptr ? *inner : optimizer;
    const PickleValue *groups = torch.find("param_groups"), *state = torch.find("state");
    if (groups == nullptr || state == nullptr) return fail("has no param_groups");
    const PickleValue* mains = optimizer.find("fp32_from_fp16_params");
    std::map<std::int64_t, const PickleValue*> by_id;
    for (const auto& [id, values] : state->pairs()) {
      if (id->is(PickleKind::kInt)) by_id[id->integer] = values;
    }
    std::span<const PickleValue* const> list = groups->elements();
    for (std::size_t i = 0; i < list.size(); ++i) {
      const PickleValue* params = list[i]->find("params");
      if (params == nullptr) return fail("a parameter group has no parameters");
      std::vector<const RankParam*> held = params_of_group(*list[i]);
      if (held.size() != params->elements().size()) return fail("other parameter groups");
      std::span<const PickleValue* const> main;
      if (mains != nullptr && i < mains->elements().size()) main = mains->elements()[i]->elements();
      for (std::size_t k = 0; k < held.size(); ++k) {
        auto found = by_id.find(params->elements()[k]->as_int().value_or(-1));
        if (found == by_id.end()) return fail("a parameter has no state");
        for (const char* kind : {"exp_avg", "exp_avg_sq", "momentum_buffer"}) {
          add(kind, *held[k], found->second->find(kind));
        }
        if (main.size() == held.size()) add("param", *held[k], main[k]);
      }
    }
  }

  // Megatron's groups: with and without weight decay, dense and experts.
  std::vector<const RankParam*> params_of_group(const PickleValue& group) const {
    const PickleValue *wd = group.find("wd_mult"), *expert = group.find("is_expert_parallel");
    bool decays = wd == nullptr || wd->as_number().value_or(1) != 0;
    bool experts = expert != nullptr && expert->as_int().value_or(0) != 0;
    std::vector<const RankParam*> out;
    for (const std::vector<StoredParam>& chunk : chunks_) {
      for (const StoredParam& stored : chunk) {
        const RankParam& param = stored.param;
        bool plain = param.global.ndim() == 1 || param.name.ends_with(".bias");
        if (is_buffer(param.name) || param.expert != experts || plain == decays) continue;
        out.push_back(&param);
      }
    }
    return out;
  }

  void add(std::string_view kind, const RankParam& param, const PickleValue* value) {
    if (value == nullptr || !TorchArchive::is_tensor(*value)) return;
    std::string name = concat("optimizer.state.", kind, ".", param.name);
    RankFiles::Added added = files_.add(file_.model, *value, name);
    std::int64_t elements = 1;
    for (std::int64_t dim : added.shape) elements *= dim;
    if (elements != param.numel()) return fail(concat(name, " is of another size"));
    out_.push_back({std::move(name), &param, added.dtype, {{}, 0, file_.model, added.key}});
  }

  // distrib_optim.pt: {buffer: {types: {"exp_avg": flat, ..}}}, or a list of them for a chain. A
  // buffer holds the parameters of a model chunk.
  void read_buffers(const PickleValue& root) {
    if (!root.is(PickleKind::kList)) return read_chain(root, false);
    for (std::size_t i = 0; i < root.items.size(); ++i) read_chain(*root.items[i], i > 0);
  }

  void read_chain(const PickleValue& buffers, bool experts) {
    for (const auto& [index, by_type] : buffers.pairs()) {
      if (!index->is(PickleKind::kInt)) continue;
      std::size_t chunk = static_cast<std::size_t>(index->integer);
      auto types = by_type->pairs();
      if (chunk >= chunks_.size() || types.size() != 1) return fail("other buffers");
      std::vector<const RankParam*> params;
      for (const StoredParam& stored : chunks_[chunk]) {
        bool there = stored.param.expert == experts && !is_buffer(stored.param.name);
        if (there) params.push_back(&stored.param);
      }
      for (const auto& [key, value] : types[0].second->pairs()) {
        if (key->is(PickleKind::kText) && TorchArchive::is_tensor(*value)) {
          add_flat(key->text, params, *value);
        }
      }
    }
  }

  // All parameters of a buffer in reverse, each at a multiple of 64 elements. (A buffer of several
  // buckets has gaps elsewhere; its size tells.)
  void add_flat(std::string_view kind, const std::vector<const RankParam*>& params,
                const PickleValue& value) {
    constexpr std::int64_t kAlignment = 64;
    std::string of_buffer = concat("optimizer.state.", kind);
    RankFiles::Added added = files_.add(*file_.optimizer, value, of_buffer);
    std::int64_t at = 0;
    for (std::size_t i = params.size(); i > 0; --i) {
      at = round_up(at, kAlignment);
      out_.push_back({concat(of_buffer, ".", params[i - 1]->name),
                      params[i - 1],
                      added.dtype,
                      {{}, at, *file_.optimizer, added.key}});
      at += params[i - 1]->numel();
    }
    if (added.shape != std::vector<std::int64_t>{at}) fail("its buffers have several buckets");
  }

  RankFiles& files_;
  const RankFiles::RankFile& file_;
  const Chunks& chunks_;
  std::vector<State> out_;
  std::string problem_;
};

void add_stored(const RankParam& param, Dtype dtype, const std::string& name,
                const ForeignChunk& stored, ForeignTensors& out) {
  auto [entry, added] = out.try_emplace(name, ForeignTensor{dtype, param.global, {}});
  BEV_CHECK(entry->second.shape == param.global, ErrorKind::kInput, quote(name), ": is ",
            entry->second.shape, " on one rank and ", param.global, " on another");
  add_flat_chunks(param.boxes, {0, param.numel()}, stored, entry->second.chunks);
}

std::vector<const PickleValue*> models_of(const PickleValue& root, const std::string& where) {
  std::vector<const PickleValue*> models;
  if (const PickleValue* one = root.find("model")) models.push_back(one);
  for (std::int64_t i = 0; models.empty() || i > 0; ++i) {
    const PickleValue* one = root.find(concat("model", i));
    if (one == nullptr) break;
    models.push_back(one);
  }
  BEV_CHECK(!models.empty(), ErrorKind::kInput, where, ": has no model");
  BEV_CHECK(models[0]->find("language_model") == nullptr, ErrorKind::kInput, where,
            ": is of Megatron's models before Megatron Core; convert it there first");
  return models;
}

std::int64_t argument(const PickleValue& root, std::string_view name) {
  const PickleValue* args = root.find("args");
  const PickleValue* value = args != nullptr ? args->find(name) : nullptr;
  return value != nullptr ? value->as_int().value_or(0) : 0;
}

// Ranks that hold the same as one before.
class Copies {
 public:
  bool is_copy(const RankParam& param, const MegatronRank& rank, bool gated, bool tied) {
    if (tied && param.name == "output_layer.weight") return true;
    bool whole = cut_of(param.name, gated) == MegatronCut::kWhole;
    std::int64_t part = whole ? 0 : param.expert ? rank.etp : rank.tp;
    return !seen_.emplace(param.name, part).second;
  }

 private:
  std::set<std::pair<std::string, std::int64_t>> seen_;
};

}  // namespace

ForeignTensors tensors_of_ranks(RankFiles& files, bool gated, std::vector<std::string>& ignored) {
  ForeignTensors weights, state;
  Copies copies;
  std::string problem;
  for (const RankFiles::RankFile& file : files.ranks()) {
    const PickleValue& root = files.root(file.model);
    std::string where = files.files()[file.model].name;
    bool tied = argument(root, "untie_embeddings_and_output_weights") == 0;
    StateReader::Chunks chunks;
    std::set<const RankParam*> own;
    for (const PickleValue* model : models_of(root, where)) {
      ChunkReader reader(files, file, static_cast<std::int64_t>(chunks.size()), gated, file.rank);
      chunks.push_back(
          reader.read(*model, argument(root, "num_layers"), argument(root, "num_experts")));
      for (const StoredParam& stored : chunks.back()) {
        if (copies.is_copy(stored.param, file.rank, gated, tied)) continue;
        own.insert(&stored.param);
        add_stored(stored.param, stored.dtype, stored.param.name, {{}, 0, file.model, stored.key},
                   weights);
      }
    }
    if (!problem.empty()) continue;
    for (const StateReader::State& one : StateReader(files, file, chunks).read(problem)) {
      if (own.contains(one.param)) add_stored(*one.param, one.dtype, one.name, one.stored, state);
    }
    if (!problem.empty()) problem = concat(where, ": ", problem);
  }
  if (problem.empty()) {
    weights.merge(state);
  } else {
    ignored.push_back(concat("optimizer state: ", problem, "; save as torch_dist to keep it"));
  }
  return weights;
}

}  // namespace bev
