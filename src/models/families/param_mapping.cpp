#include "models/families/param_mapping.h"

#include <array>
#include <charconv>
#include <optional>
#include <span>
#include <utility>

#include "base/error.h"

namespace bev {

namespace {

// Replaces the first {}, if any, by the number.
std::string with_number(std::string_view pattern, std::string_view number) {
  std::size_t at = pattern.find("{}");
  if (at == std::string_view::npos) return std::string(pattern);
  return concat(pattern.substr(0, at), number, pattern.substr(at + 2));
}

// The same for a layer number; {+} is replaced by `layers` + layer.
std::string with_layer(std::string_view pattern, std::string_view layer, std::int64_t layers) {
  constexpr std::string_view kAfterLastLayer = "{+}";
  std::size_t at = pattern.find(kAfterLastLayer);
  if (at == std::string_view::npos) return with_number(pattern, layer);
  std::int64_t number = 0;
  std::from_chars(layer.data(), layer.data() + layer.size(), number);
  return concat(pattern.substr(0, at), layers + number,
                pattern.substr(at + kAfterLastLayer.size()));
}

// Matches `name` against `pattern`: the number in place of {}, "" if the pattern has none; nullopt
// if they do not match.
std::optional<std::string_view> match(std::string_view pattern, std::string_view name) {
  std::size_t at = pattern.find("{}");
  if (at == std::string_view::npos) {
    return name == pattern ? std::optional<std::string_view>("") : std::nullopt;
  }
  std::string_view head = pattern.substr(0, at), tail = pattern.substr(at + 2);
  if (!name.starts_with(head) || !name.ends_with(tail)) return std::nullopt;
  if (name.size() <= head.size() + tail.size()) return std::nullopt;
  std::string_view layer = name.substr(at, name.size() - head.size() - tail.size());
  if (layer.find_first_not_of("0123456789") != layer.npos) return std::nullopt;
  return layer;
}

// Row counts of the Hugging Face tensors of a parameter with `shape`.
std::vector<std::int64_t> part_rows(const WeightRule& rule, const ModelConfig& config,
                                    const Shape& shape) {
  std::int64_t query = config.num_attention_heads * config.head_size();
  std::int64_t key = config.kv_heads() * config.head_size();
  switch (rule.kind) {
    case WeightKind::kQkvRows:
      return {query, key, key};
    case WeightKind::kGatedQkvRows:
      return {config.attention_output_gate ? 2 * query : query, key, key};
    case WeightKind::kDeltaRows:
      return {config.delta.conv_columns(), config.delta.value_columns(),
              config.delta.num_value_heads, config.delta.num_value_heads};
    case WeightKind::kDeltaGroups:
      return {config.delta.conv_columns() + config.delta.value_columns(),
              2 * config.delta.num_value_heads};
    case WeightKind::kGateUpRows:
      return {shape[0] / 2, shape[0] / 2};
    default:
      return {shape[0]};
  }
}

// Tensors whose rows are groups: of each part of a group, the rows of all groups are together in
// ours.
struct GroupPart {
  std::int64_t rows = 0;       // of a group
  std::int64_t param_row = 0;  // of the first group
};
void add_groups(std::size_t part, std::int64_t groups, std::span<const GroupPart> parts,
                std::vector<MovedRows>& out) {
  std::int64_t row = 0;
  for (std::int64_t group = 0; group < groups; ++group) {
    for (const GroupPart& one : parts) {
      out.push_back({part, row, one.param_row + group * one.rows, one.rows});
      row += one.rows;
    }
  }
}

std::vector<MovedRows> gated_order(const ModelConfig& config) {
  const std::int64_t size = config.head_size(), heads = config.num_attention_heads;
  const std::int64_t query = heads * size, key = config.kv_heads() * size;
  std::vector<MovedRows> order;
  add_groups(0, heads, std::array<GroupPart, 2>{{{size, query}, {size, 0}}}, order);
  order.push_back({1, 0, 2 * query, key});
  order.push_back({2, 0, 2 * query + key, key});
  return order;
}

std::vector<MovedRows> group_order(const DeltaConfig& delta) {
  const std::int64_t shared = delta.num_value_heads / delta.num_key_heads;
  const std::int64_t keys = delta.key_columns(), values = delta.value_columns();
  const std::int64_t wide = shared * delta.value_head_dim;
  std::vector<MovedRows> order;
  add_groups(0, delta.num_key_heads,
             std::array<GroupPart, 4>{{{delta.key_head_dim, 0},
                                       {delta.key_head_dim, keys},
                                       {wide, 2 * keys},
                                       {wide, 2 * keys + values}}},
             order);
  const std::int64_t first = delta.conv_columns() + values;
  add_groups(1, delta.num_key_heads,
             std::array<GroupPart, 2>{{{shared, first}, {shared, first + delta.num_value_heads}}},
             order);
  return order;
}

std::vector<MovedRows> row_order(WeightKind kind, const ModelConfig& config) {
  if (kind == WeightKind::kGatedQkvRows && config.attention_output_gate) {
    return gated_order(config);
  }
  return kind == WeightKind::kDeltaGroups ? group_order(config.delta) : std::vector<MovedRows>();
}

// The name, and with the family's other prefixes.
std::vector<std::string> with_and_without_prefix(const std::string& name,
                                                 const ModelFamily& family) {
  std::vector<std::string> names = {name};
  if (!name.starts_with(family.weight_prefix)) return names;
  const std::string bare = name.substr(family.weight_prefix.size());
  names.push_back(bare);
  if (!family.other_prefix.empty()) names.push_back(family.other_prefix + bare);
  return names;
}

// All names under which files may hold `source`; the first is the one we write.
std::vector<std::string> spellings(const WeightRule& rule, const std::string& source,
                                   const ModelFamily& family) {
  std::vector<std::string> names = with_and_without_prefix(source, family);
  if (!rule.other_source.empty() && rule.kind != WeightKind::kExperts) {
    names.insert(names.begin() + 1, rule.other_source);
  }
  return names;
}

// A rule and its match for one parameter.
struct Match {
  const WeightRule* rule;
  std::string layer, suffix;
  std::int64_t layers = 0;  // number of layers of the model

  std::string in_layer(std::string_view pattern) const {
    return with_layer(pattern, layer, layers);
  }
};

std::optional<Match> find_rule(std::string_view param, const ModelFamily& family,
                               const ModelConfig& config) {
  std::size_t dot = param.rfind('.');
  const std::int64_t layers = config.num_layers;
  for (const WeightRule& rule : family.weights) {
    if (rule.labels != LabelKind::kNone && rule.labels != config.encoder.labels) continue;
    if (rule.untied && !config.untie_embeddings_and_output_weights) continue;
    if (auto layer = match(rule.name, param)) return Match{&rule, std::string(*layer), "", layers};
    if (auto layer = match(rule.name, param.substr(0, dot))) {
      return Match{&rule, std::string(*layer), std::string(param.substr(dot)), layers};
    }
  }
  return std::nullopt;
}

// Older files of encoders name the parameters of a LayerNorm otherwise.
void add_old_norm_names(std::vector<std::string>& names) {
  constexpr std::string_view kWeight = "LayerNorm.weight", kBias = "LayerNorm.bias";
  for (std::size_t i = 0, count = names.size(); i < count; ++i) {
    std::string_view name = names[i];
    if (name.ends_with(kWeight)) {
      names.push_back(concat(name.substr(0, name.size() - kWeight.size()), "LayerNorm.gamma"));
    } else if (name.ends_with(kBias)) {
      names.push_back(concat(name.substr(0, name.size() - kBias.size()), "LayerNorm.beta"));
    }
  }
}

HfTensor make_tensor(const std::vector<std::string>& names, const Shape& shape) {
  return {names.front(), {names.begin() + 1, names.end()}, shape};
}

// Adds the source tensors of every expert.
void map_experts(const Match& found, const ModelFamily& family, ParamMapping& mapping) {
  const WeightRule& rule = *found.rule;
  Shape shape(mapping.shape.dims().subspan(1));
  shape[0] /= static_cast<std::int64_t>(rule.sources.size());
  for (std::int64_t expert = 0; expert < mapping.shape[0]; ++expert) {
    for (const std::string& source : rule.sources) {
      std::vector<std::string> names = spellings(rule, source, family);
      for (std::string& name : names) {
        name = with_number(found.in_layer(name), concat(expert)) + found.suffix;
      }
      mapping.tensors.push_back(make_tensor(names, shape));
    }
  }
  if (rule.other_source.empty()) return;
  for (const std::string& name : with_and_without_prefix(rule.other_source, family)) {
    mapping.whole_names.push_back(found.in_layer(name));
  }
}

}  // namespace

std::vector<MovedRows> order_of_rows(const ParamMapping& mapping, std::int64_t begin,
                                     std::int64_t end) {
  std::vector<MovedRows> order;
  for (MovedRows run : mapping.order) {
    if (run.param_row < begin || run.param_row >= end) continue;
    order.push_back({0, run.tensor_row, run.param_row - begin, run.count});
  }
  if (order.size() == 1) order.clear();
  return order;
}

bool transposed(const ParamMapping& mapping) {
  return mapping.kind == WeightKind::kTranspose && mapping.shape.ndim() == 2;
}

bool reshaped(const ParamMapping& mapping) {
  return mapping.kind == WeightKind::kUnitRow || mapping.kind == WeightKind::kScalar;
}

bool has_columns(const ParamMapping& mapping) {
  return mapping.kind == WeightKind::kExpertColumns || mapping.kind == WeightKind::kGateUpColumns;
}

std::optional<ParamMapping> find_mapping(const Param& param, const ModelConfig& config,
                                         const ModelFamily& family) {
  if (param.name == kLabelHead) {
    return ParamMapping{
        param.name, param.shape, WeightKind::kPlain, 0, {{param.name, {}, param.shape}}};
  }
  std::optional<Match> found = find_rule(param.name, family, config);
  if (!found) return std::nullopt;
  const WeightRule& rule = *found->rule;
  ParamMapping mapping{.param = param.name,
                       .shape = param.shape,
                       .kind = rule.kind,
                       .head_size = config.head_size(),
                       .tensors = {}};
  if (rule.kind == WeightKind::kExperts) {
    map_experts(*found, family, mapping);
    return mapping;
  }
  mapping.packed = family.packed_experts && has_columns(mapping) && param.shape.ndim() == 3;
  std::vector<std::int64_t> rows = part_rows(rule, config, param.shape);
  mapping.order = row_order(rule.kind, config);
  for (std::size_t part = 0; part < rule.sources.size(); ++part) {
    std::vector<std::string> names = spellings(rule, rule.sources[part], family);
    for (std::string& name : names) name = found->in_layer(name) + found->suffix;
    if (config.encoder.bare() && names.size() > 1) std::swap(names.front(), names.back());
    add_old_norm_names(names);
    Shape shape = param.shape;
    shape[0] = rows[part];
    if (rule.kind == WeightKind::kScalar) shape = {};
    if (rule.kind == WeightKind::kUnitRow) shape = {1, param.shape[0]};
    if (transposed(mapping)) std::swap(shape[0], shape[1]);
    if (has_columns(mapping) && shape.ndim() == 3) std::swap(shape[1], shape[2]);
    mapping.tensors.push_back(make_tensor(names, shape));
  }
  return mapping;
}

ParamMapping map_param(const Param& param, const ModelConfig& config, const ModelFamily& family) {
  std::optional<ParamMapping> mapping = find_mapping(param, config, family);
  BEV_CHECK(mapping.has_value(), ErrorKind::kConfig, family.name, " models have no weights for ",
            param.name, "; --model-family names another kind");
  return *std::move(mapping);
}

}  // namespace bev
