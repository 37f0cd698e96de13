#include "checkpoint/megatron/rank_params.h"

#include <algorithm>
#include <array>

#include "base/text.h"

namespace bev {

namespace {

std::int64_t number_of(const PickleValue& args, std::string_view name, std::int64_t otherwise) {
  const PickleValue* value = args.find(name);
  return value == nullptr ? otherwise : value->as_int().value_or(otherwise);
}

}  // namespace

MegatronLayout MegatronLayout::of_arguments(const PickleValue& args) {
  MegatronLayout out;
  auto size = [&](std::string_view name, std::int64_t otherwise) {
    return std::max<std::int64_t>(number_of(args, name, otherwise), 1);
  };
  out.tp = size("tensor_model_parallel_size", 1);
  out.pp = size("pipeline_model_parallel_size", 1);
  out.vpp = size("virtual_pipeline_model_parallel_size", 1);
  out.ep = size("expert_model_parallel_size", 1);
  out.etp = size("expert_tensor_parallel_size", out.tp);
  out.first_layers = number_of(args, "decoder_first_pipeline_num_layers", -1);
  out.last_layers = number_of(args, "decoder_last_pipeline_num_layers", -1);
  out.embedding_counts = number_of(args, "account_for_embedding_in_pipeline_split", 0) != 0;
  out.loss_counts = number_of(args, "account_for_loss_in_pipeline_split", 0) != 0;
  const PickleValue* listed = args.find("pipeline_model_parallel_layout");
  out.listed = listed != nullptr && !listed->is(PickleKind::kNone);
  return out;
}

// Megatron's get_transformer_layer_offset and get_num_layers_to_build.
LayerRange layers_of(const MegatronLayout& layout, const MegatronRank& rank, std::int64_t layers) {
  bool first = rank.pp == 0, last = rank.pp == layout.pp - 1;
  if (layout.first_layers >= 0 || layout.last_layers >= 0) {
    std::int64_t ends[2] = {std::max<std::int64_t>(layout.first_layers, 0),
                            std::max<std::int64_t>(layout.last_layers, 0)};
    std::int64_t stages =
        layout.pp - (layout.first_layers >= 0 ? 1 : 0) - (layout.last_layers >= 0 ? 1 : 0);
    std::int64_t all = (layers - ends[0] - ends[1]) / layout.vpp;
    std::int64_t middle = stages > 0 ? all / stages : 0;
    ends[0] /= layout.vpp;
    ends[1] /= layout.vpp;
    std::int64_t begin = rank.chunk * (ends[0] + all + ends[1]), count = middle;
    if (!first) begin += ends[0] + (layout.first_layers >= 0 ? rank.pp - 1 : rank.pp) * middle;
    if (first && layout.first_layers >= 0) count = ends[0];
    if (last && layout.last_layers >= 0) count = ends[1];
    return {begin, count};
  }
  std::int64_t counted = layers + (layout.embedding_counts ? 1 : 0) + (layout.loss_counts ? 1 : 0);
  std::int64_t count = counted / layout.pp / layout.vpp;
  std::int64_t begin = rank.chunk * (counted / layout.vpp) + rank.pp * count;
  bool has_embedding = first && rank.chunk == 0, has_loss = last && rank.chunk == layout.vpp - 1;
  if (layout.embedding_counts && !has_embedding) --begin;
  if (layout.embedding_counts && has_embedding) --count;
  if (layout.loss_counts && has_loss) --count;
  return {begin, count};
}

MegatronCut cut_of(std::string_view name, bool gated) {
  constexpr auto kRows = std::to_array<std::string_view>(
      {"word_embeddings.weight", "output_layer.weight", "linear_qkv.weight", "linear_qkv.bias",
       "linear_q_proj.weight", "linear_q_up_proj.weight", "linear_kv_up_proj.weight"});
  constexpr auto kColumns =
      std::to_array<std::string_view>({"linear_proj.weight", "linear_fc2.weight"});
  auto ends = [&](std::string_view end) { return name.ends_with(end); };
  if (std::ranges::any_of(kRows, ends)) return MegatronCut::kRows;
  if (std::ranges::any_of(kColumns, ends)) return MegatronCut::kColumns;
  if (ends("linear_fc1.weight") || ends("linear_fc1.bias")) {
    return gated ? MegatronCut::kGatedRows : MegatronCut::kRows;
  }
  return MegatronCut::kWhole;
}

std::vector<Box> boxes_of_cut(MegatronCut cut, const Shape& global, std::int64_t parts,
                              std::int64_t index) {
  Box whole = whole_box(global);
  auto part = [&](int dim, std::int64_t begin, std::int64_t size) {
    Box box = whole;
    std::int64_t count = size / parts;
    box.set(dim, {begin + index * count, begin + (index + 1) * count});
    return box;
  };
  switch (cut) {
    case MegatronCut::kRows:
      return {part(0, 0, global[0])};
    case MegatronCut::kGatedRows:
      return {part(0, 0, global[0] / 2), part(0, global[0] / 2, global[0] / 2)};
    case MegatronCut::kColumns:
      return {part(global.ndim() - 1, 0, global[global.ndim() - 1])};
    case MegatronCut::kWhole:
      break;
  }
  return {whole};
}

std::int64_t RankParam::numel() const {
  std::int64_t sum = 0;
  for (const Box& box : boxes) sum += box.numel();
  return sum;
}

namespace {

class ParamList {
 public:
  ParamList(const ModelConfig& config, const MegatronLayout& layout, const MegatronRank& rank,
            ModuleKind kind)
      : config_(config), layout_(layout), rank_(rank), kind_(kind) {}

  std::vector<RankParam> list() {
    std::int64_t hidden = config_.hidden_size;
    bool first = rank_.pp == 0 && rank_.chunk == 0;
    bool last = rank_.pp == layout_.pp - 1 && rank_.chunk == layout_.vpp - 1;
    if (first) {
      add("embedding.word_embeddings.weight", {config_.vocab_size, hidden});
      if (config_.position_embedding_type == PositionKind::kLearned) {
        add("embedding.position_embeddings.weight", {config_.max_position_embeddings, hidden});
      }
    }
    LayerRange range = layers_of(layout_, rank_, config_.num_layers);
    for (std::int64_t i = 0; i < range.count; ++i) add_layer(range.begin + i);
    if (!last) return std::move(out_);
    norm("decoder.final_layernorm.", hidden);
    bool own_head = config_.untie_embeddings_and_output_weights || !first;
    if (own_head) add("output_layer.weight", {config_.vocab_size, hidden});
    return std::move(out_);
  }

 private:
  void add(std::string name, const Shape& shape) {
    MegatronCut cut = cut_of(name, config_.gated);
    out_.push_back({std::move(name), shape, {}, false});
    out_.back().boxes = boxes_of_cut(cut, shape, layout_.tp, rank_.tp);
  }
  // `prefix` is that of weight and bias: "x." or "x.layer_norm_".
  void norm(const std::string& prefix, std::int64_t size) {
    add(prefix + "weight", {size});
    if (config_.normalization == NormKind::kLayerNorm) add(prefix + "bias", {size});
  }
  void linear(const std::string& name, std::int64_t rows, std::int64_t columns, bool bias) {
    add(name + ".weight", {rows, columns});
    if (bias) add(name + ".bias", {rows});
  }

  void add_layer(std::int64_t number) {
    std::string layer = concat("decoder.layers.", number, ".");
    bool experts = config_.has_experts(number);
    if (!kind_.fused_norms) norm(layer + "input_layernorm.", config_.hidden_size);
    add_attention(layer + "self_attention.");
    if (experts || !kind_.fused_norms) norm(layer + "pre_mlp_layernorm.", config_.hidden_size);
    if (experts) {
      add_experts(layer + "mlp.");
    } else {
      add_mlp(layer + "mlp.", config_.ffn_size(), kind_.fused_norms);
    }
  }

  void add_attention(const std::string& name) {
    std::int64_t hidden = config_.hidden_size, head = config_.head_size();
    std::int64_t heads = config_.num_attention_heads, groups = config_.kv_heads();
    linear(name + "linear_proj", hidden, heads * head, config_.has_proj_bias());
    if (kind_.fused_norms) norm(name + "linear_qkv.layer_norm_", hidden);
    linear(name + "linear_qkv", (heads + 2 * groups) * head, hidden, config_.has_qkv_bias());
    if (!config_.qk_layernorm) return;
    norm(name + "q_layernorm.", head);
    norm(name + "k_layernorm.", head);
  }

  std::int64_t fc1_rows(std::int64_t ffn) const { return config_.gated ? 2 * ffn : ffn; }

  void add_mlp(const std::string& name, std::int64_t ffn, bool with_norm) {
    if (with_norm) norm(name + "linear_fc1.layer_norm_", config_.hidden_size);
    linear(name + "linear_fc1", fc1_rows(ffn), config_.hidden_size, config_.has_mlp_bias());
    linear(name + "linear_fc2", config_.hidden_size, ffn, config_.has_mlp_bias());
  }

  void add_expert(const std::string& name, std::int64_t rows, std::int64_t columns) {
    auto push = [&](const std::string& part, const Shape& shape) {
      MegatronCut cut = cut_of(part, config_.gated);
      out_.push_back({part, shape, boxes_of_cut(cut, shape, layout_.etp, rank_.etp), true});
    };
    push(name + ".weight", {rows, columns});
    if (config_.has_mlp_bias()) push(name + ".bias", {rows});
  }

  void add_experts(const std::string& name) {
    const MoeConfig& moe = config_.moe;
    std::int64_t hidden = config_.hidden_size, ffn = config_.expert_ffn_size();
    add(name + "router.weight", {moe.num_experts, hidden});
    if (moe.router_bias) add(name + "router.bias", {moe.num_experts});
    std::int64_t count = moe.num_experts / layout_.ep, begin = rank_.ep * count;
    auto expert = [&](std::int64_t i, const char* part) {
      return concat(name, "experts.experts.", begin + i, ".", part);
    };
    for (std::int64_t i = 0; i < count; ++i) {
      add_expert(expert(i, "linear_fc1"), fc1_rows(ffn), hidden);
      if (!kind_.grouped_experts) add_expert(expert(i, "linear_fc2"), hidden, ffn);
    }
    for (std::int64_t i = 0; i < count && kind_.grouped_experts; ++i) {
      add_expert(expert(i, "linear_fc2"), hidden, ffn);
    }
    if (moe.shared_expert_size == 0) return;
    if (moe.shared_expert_gate) add(name + "shared_experts.gate_weight", {1, hidden});
    add_mlp(name + "shared_experts.", moe.shared_expert_size, false);
  }

  const ModelConfig& config_;
  const MegatronLayout& layout_;
  const MegatronRank& rank_;
  ModuleKind kind_;
  std::vector<RankParam> out_;
};

}  // namespace

std::vector<RankParam> rank_params(const ModelConfig& config, const MegatronLayout& layout,
                                   const MegatronRank& rank, ModuleKind kind) {
  return ParamList(config, layout, rank, kind).list();
}

void add_flat_chunks(const std::vector<Box>& boxes, Range range, const ForeignChunk& stored,
                     std::vector<ForeignChunk>& out) {
  std::int64_t first = stored.first, begin = 0;
  for (const Box& box : boxes) {
    std::int64_t end = begin + box.numel();
    Range within{std::max(range.begin, begin) - begin, std::min(range.end, end) - begin};
    begin = end;
    if (within.begin >= within.end) continue;
    for (const Box& local : boxes_of_range(box.shape(), within)) {
      ForeignChunk piece{local, first, stored.file, stored.key};
      for (int i = 0; i < box.ndim(); ++i) {
        piece.box.set(i, {local.begin[i] + box.begin[i], local.end[i] + box.begin[i]});
      }
      first += local.numel();
      out.push_back(std::move(piece));
    }
  }
}

}  // namespace bev
