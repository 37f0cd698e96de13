#include "checkpoint/megatron/model_tensors.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include "base/error.h"
#include "base/json_check.h"
#include "models/model.h"

namespace bev {

namespace {

// State of a parameter: its prefix here, and those that Megatron's optimizers give it.
struct StateKind {
  std::string_view ours;
  std::array<std::string_view, 3> theirs;
};
constexpr std::string_view kNoPrefix = "-";  // of a kind with fewer prefixes than others
constexpr auto kStateKinds = std::to_array<StateKind>({
    {"", {"", kNoPrefix, kNoPrefix}},
    {"optimizer.main/",
     {"optimizer.state.fp32_param.", "optimizer.state.param.", "optimizer.state.master_param."}},
    {"optimizer.exp_avg/", {"optimizer.state.exp_avg.", kNoPrefix, kNoPrefix}},
    {"optimizer.exp_avg_sq/", {"optimizer.state.exp_avg_sq.", kNoPrefix, kNoPrefix}},
    {"optimizer.momentum/", {"optimizer.state.momentum_buffer.", kNoPrefix, kNoPrefix}},
});

struct Renaming {
  std::string_view ours, theirs;
};
// Other names of a parameter's end. Norms are part of the layer after them, as in Transformer
// Engine's layers.
constexpr auto kRenamings = std::to_array<Renaming>({
    {".input_layernorm.weight", ".self_attention.linear_qkv.layer_norm_weight"},
    {".input_layernorm.bias", ".self_attention.linear_qkv.layer_norm_bias"},
    {".pre_mlp_layernorm.weight", ".mlp.linear_fc1.layer_norm_weight"},
    {".pre_mlp_layernorm.bias", ".mlp.linear_fc1.layer_norm_bias"},
    {".q_layernorm.weight", ".linear_q_up_proj.layer_norm_weight"},
    {".kv_layernorm.weight", ".linear_kv_up_proj.layer_norm_weight"},
    {".shared_experts.gate.weight", ".shared_experts.gate_weight"},
    {".mlp.experts.linear_fc1.weight", ".mlp.experts.experts.linear_fc1.weight"},
    {".mlp.experts.linear_fc2.weight", ".mlp.experts.experts.linear_fc2.weight"},
    {".mlp.experts.linear_fc1.bias", ".mlp.experts.experts.linear_fc1.bias"},
    {".mlp.experts.linear_fc2.bias", ".mlp.experts.experts.linear_fc2.bias"},
});
constexpr std::string_view kMtpLayer = ".transformer_layer.", kNewMtpLayer = ".mtp_model_layer.";
constexpr std::string_view kExperts = ".experts.linear_fc";

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  std::size_t at = text.find(from);
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

std::vector<std::string> names_of(const std::string& param) {
  std::vector<std::string> names = {param};
  for (const Renaming& renaming : kRenamings) {
    if (!param.ends_with(renaming.ours)) continue;
    names.push_back(replaced(param, renaming.ours, renaming.theirs));
  }
  for (std::size_t i = names.size(); i > 0 && param.find(kMtpLayer) != std::string::npos; --i) {
    names.push_back(replaced(names[i - 1], kMtpLayer, kNewMtpLayer));
  }
  return names;
}

// "decoder.layers.3.x" as "decoder.layers.x" and 3; nullopt for other names.
struct Stacked {
  std::string name;
  std::int64_t layer = 0;
};
std::optional<Stacked> stacked(const std::string& name) {
  constexpr std::string_view kLayers = "decoder.layers.";
  if (!name.starts_with(kLayers)) return std::nullopt;
  const char* begin = name.data() + kLayers.size();
  std::int64_t layer = 0;
  auto [end, error] = std::from_chars(begin, name.data() + name.size(), layer);
  if (error != std::errc() || *end != '.') return std::nullopt;
  return Stacked{concat(kLayers, end + 1), layer};
}

// A stored tensor of which some leading indices are fixed: the layer of stacked ones.
struct Found {
  std::string name;
  const ForeignTensor* tensor = nullptr;
  std::vector<std::int64_t> fixed;
};

// Rows of a parameter, of one of its experts or of all, in a stored tensor.
struct RowPart {
  RowRun rows;
  std::int64_t expert = -1;  // -1: the tensor has the parameter's own dims
};

class TensorFinder {
 public:
  TensorFinder(const ModelConfig& config, const ForeignTensors& foreign, const std::string& where)
      : config_(config), foreign_(foreign), where_(where) {}

  // Adds a parameter's state of one kind if it is there.
  void add(const Param& param, const StateKind& kind) {
    for (std::string_view prefix : kind.theirs) {
      if (prefix == kNoPrefix) return;
      for (const std::string& name : names_of(param.name)) {
        if (add_as(param, std::string(kind.ours) + param.name, prefix, name)) return;
      }
    }
  }

  ModelTensors take() { return std::move(out_); }

 private:
  std::optional<Found> find(std::string_view prefix, const std::string& name) const {
    std::string whole = concat(prefix, name);
    if (auto found = foreign_.find(whole); found != foreign_.end()) {
      return Found{whole, &found->second, {}};
    }
    std::optional<Stacked> layers = stacked(name);
    if (!layers) return std::nullopt;
    whole = concat(prefix, layers->name);
    auto found = foreign_.find(whole);
    bool there = found != foreign_.end() && found->second.shape.ndim() > 0 &&
                 layers->layer < found->second.shape[0];
    return there ? std::optional(Found{whole, &found->second, {layers->layer}}) : std::nullopt;
  }

  bool add_as(const Param& param, const std::string& ours, std::string_view prefix,
              const std::string& name) {
    if (std::optional<Found> found = find(prefix, name)) {
      for (const RowRun& run : megatron_rows(config_, param.name, param.shape[0])) {
        add_rows(param, ours, *found, {run, -1});
      }
      return true;
    }
    if (add_halves(param, ours, prefix, name, -1)) return true;
    return param.name.find(kExperts) != std::string::npos && add_experts(param, ours, prefix, name);
  }

  // Gate and up as tensors of their own, NAME_w and NAME_v.
  bool add_halves(const Param& param, const std::string& ours, std::string_view prefix,
                  const std::string& name, std::int64_t expert) {
    std::optional<Found> gate = find(prefix, name + "_w"), up = find(prefix, name + "_v");
    if (!gate || !up) return false;
    std::int64_t half = param.shape[expert >= 0 ? 1 : 0] / 2;
    add_rows(param, ours, *gate, {{0, 0, half}, expert});
    add_rows(param, ours, *up, {{half, 0, half}, expert});
    return true;
  }

  // Experts as tensors of their own, "..experts.experts.5.linear_fc1.weight".
  bool add_experts(const Param& param, const std::string& ours, std::string_view prefix,
                   const std::string& name) {
    bool any = false;
    for (std::int64_t expert = 0; expert < param.shape[0]; ++expert) {
      std::string one = replaced(name, kExperts, concat(".experts.", expert, ".linear_fc"));
      if (std::optional<Found> found = find(prefix, one)) {
        add_rows(param, ours, *found, {{0, 0, param.shape[1]}, expert});
        any = true;
      } else {
        any |= add_halves(param, ours, prefix, one, expert);
      }
    }
    return any;
  }

  void check_shape(const Param& param, const Found& found, const RowPart& part) const {
    const Shape &theirs = found.tensor->shape, &ours = param.shape;
    int lead = static_cast<int>(found.fixed.size()), skip = part.expert >= 0 ? 1 : 0;
    bool fits = theirs.ndim() - lead == ours.ndim() - skip;
    for (int i = skip + 1; fits && i < ours.ndim(); ++i) fits = theirs[lead + i - skip] == ours[i];
    fits = fits && (ours.ndim() == skip || part.rows.theirs + part.rows.count <= theirs[lead]);
    BEV_CHECK(fits, ErrorKind::kInput, where_, ": ", quote(found.name), " is ", theirs,
              ", which does not fit ", param.name, " ", ours, " of its arguments");
  }

  void add_rows(const Param& param, const std::string& ours, const Found& found,
                const RowPart& part) {
    check_shape(param, found, part);
    GlobalTensor wanted{found.tensor->dtype, param.shape};
    auto [known, added] = out_.tensors.try_emplace(ours, wanted);
    BEV_CHECK(known->second == wanted, ErrorKind::kInput, where_, ": the parts of ", ours,
              " are of different types");
    out_.used.insert(found.name);
    std::vector<Piece>& pieces = out_.pieces[ours];
    for (const ForeignChunk& chunk : found.tensor->chunks) {
      if (std::optional<Piece> piece = piece_of(param, found, part, chunk)) {
        pieces.push_back(std::move(*piece));
      }
    }
  }

  // The chunk's elements that are in the rows, in coordinates of our tensor.
  static std::optional<Piece> piece_of(const Param& param, const Found& found, const RowPart& part,
                                       const ForeignChunk& chunk) {
    Piece piece{whole_box(param.shape), whole_box(param.shape), 0, chunk.file, chunk.key};
    int lead = static_cast<int>(found.fixed.size()), skip = part.expert >= 0 ? 1 : 0;
    std::int64_t inner = chunk.box.numel();
    for (int i = 0; i < lead; ++i) {
      Range held = chunk.box.dim(i);
      std::int64_t index = found.fixed[static_cast<std::size_t>(i)];
      if (index < held.begin || index >= held.end) return std::nullopt;
      inner /= held.size();
      piece.first += (index - held.begin) * inner;
    }
    piece.first += chunk.first;
    if (skip > 0) {
      piece.box.set(0, {part.expert, part.expert + 1});
      piece.memory.set(0, {part.expert, part.expert + 1});
    }
    for (int i = skip; i < param.shape.ndim(); ++i) {
      Range held = chunk.box.dim(lead + i - skip);
      std::int64_t shift = i == skip ? part.rows.begin - part.rows.theirs : 0;
      piece.memory.set(i, {held.begin + shift, held.end + shift});
      piece.box.set(i, piece.memory.dim(i));
    }
    Box rows = whole_box(param.shape);
    if (rows.ndim() > skip) {
      rows.set(skip, {part.rows.begin, part.rows.begin + part.rows.count});
    }
    std::optional<Box> common = intersection(piece.box, rows);
    if (!common) return std::nullopt;
    piece.box = *common;
    return piece;
  }

  const ModelConfig& config_;
  const ForeignTensors& foreign_;
  const std::string& where_;
  ModelTensors out_;
};

// Tensors that are not whole would be read with holes.
void check_whole(const ModelTensors& model, const std::string& where) {
  for (const auto& [name, tensor] : model.tensors) {
    std::int64_t elements = 0;
    for (const Piece& piece : model.pieces.find(name)->second) elements += piece.box.numel();
    BEV_CHECK(elements == tensor.shape.numel(), ErrorKind::kInput, where, ": ", name,
              " is not whole: ", elements, " of ", tensor.shape.numel(), " elements are stored");
  }
}

}  // namespace

std::vector<RowRun> megatron_rows(const ModelConfig& config, const std::string& param,
                                  std::int64_t rows) {
  bool fused = param.find(".self_attention.linear_qkv.") != std::string::npos;
  if (!fused) return {{0, 0, rows}};
  std::int64_t groups = config.kv_heads(), head = config.head_size();
  std::int64_t q_rows = config.num_attention_heads / groups * head;
  std::int64_t all_q = groups * q_rows, group_rows = q_rows + 2 * head;
  std::vector<RowRun> runs;
  for (std::int64_t group = 0; group < groups; ++group) {
    std::int64_t at = group * group_rows;
    runs.push_back({group * q_rows, at, q_rows});
    runs.push_back({all_q + group * head, at + q_rows, head});
    runs.push_back({all_q + (groups + group) * head, at + q_rows + head, head});
  }
  return runs;
}

ModelTensors model_tensors(const ModelConfig& config, const ForeignTensors& foreign,
                           const std::string& where) {
  TensorFinder finder(config, foreign, where);
  for (const Param& param : declare_params(config)) {
    for (const StateKind& kind : kStateKinds) finder.add(param, kind);
  }
  ModelTensors out = finder.take();
  check_whole(out, where);
  return out;
}

}  // namespace bev
