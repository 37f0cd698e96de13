#include "bridge/weight_map.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"
#include "bridge/convert.h"
#include "models/decoder.h"

namespace bev {

namespace {
// `count` rows of a Hugging Face tensor and where they are in our parameter.
struct RowRun {
  std::size_t part;
  std::int64_t tensor_row, param_row, count;
};

std::vector<RowRun> row_runs(const ParamMapping& mapping) {
  std::vector<RowRun> runs;
  std::int64_t row = 0;
  if (mapping.kind == WeightKind::kNeoxQkv) {
    std::int64_t size = mapping.head_size, heads = mapping.shape[0] / (3 * size);
    for (std::int64_t kind = 0; kind < 3; ++kind) {
      for (std::int64_t head = 0; head < heads; ++head, row += size) {
        runs.push_back({0, (3 * head + kind) * size, row, size});
      }
    }
    return runs;
  }
  for (std::size_t part = 0; part < mapping.tensors.size(); ++part) {
    std::int64_t rows = mapping.tensors[part].shape[0];
    runs.push_back({part, 0, row, rows});
    row += rows;
  }
  return runs;
}

// Of a row of the parameter, in the sense of row_runs.
std::int64_t columns_of(const ParamMapping& mapping) {
  const Shape& shape = mapping.shape;
  if (mapping.kind == WeightKind::kExperts) return shape.row_numel() / shape[1];
  return shape.row_numel();
}

bool transposed(const ParamMapping& mapping) {
  return mapping.kind == WeightKind::kTranspose && mapping.shape.ndim() == 2;
}

// The elements of the tensors, one after the other, are the parameter's.
bool in_order(const ParamMapping& mapping) {
  return !transposed(mapping) && mapping.kind != WeightKind::kNeoxQkv;
}

// With the number in the place of the first {}, if there is one.
std::string with_number(std::string_view pattern, std::string_view number) {
  std::size_t at = pattern.find("{}");
  if (at == std::string_view::npos) return std::string(pattern);
  return concat(pattern.substr(0, at), number, pattern.substr(at + 2));
}

// The number that stands for {} when `name` is `pattern`, "" when there is no {}; nullopt when they
// do not match.
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

// Rows of each Hugging Face tensor of a parameter with `shape`.
std::vector<std::int64_t> part_rows(const WeightRule& rule, const ModelConfig& config,
                                    const Shape& shape) {
  std::int64_t query = config.num_attention_heads * config.head_size();
  std::int64_t key = config.kv_heads() * config.head_size();
  switch (rule.kind) {
    case WeightKind::kQkvRows:
      return {query, key, key};
    case WeightKind::kGateUpRows:
      return {shape[0] / 2, shape[0] / 2};
    default:
      return {shape[0]};
  }
}

// The name, and what it is without the prefix.
std::vector<std::string> with_and_without_prefix(const std::string& name,
                                                 const ModelFamily& family) {
  std::vector<std::string> names = {name};
  if (name.starts_with(family.weight_prefix)) {
    names.push_back(name.substr(family.weight_prefix.size()));
  }
  return names;
}

// All names under which files may hold `source`, the one we write first.
std::vector<std::string> spellings(const WeightRule& rule, const std::string& source,
                                   const ModelFamily& family) {
  std::vector<std::string> names = with_and_without_prefix(source, family);
  if (!rule.other_source.empty() && rule.kind != WeightKind::kExperts) {
    names.insert(names.begin() + 1, rule.other_source);
  }
  return names;
}

// A rule and what it says of one parameter.
struct Match {
  const WeightRule* rule;
  std::string layer, suffix;
};

std::optional<Match> find_rule(std::string_view param, const ModelFamily& family) {
  std::size_t dot = param.rfind('.');
  for (const WeightRule& rule : family.weights) {
    if (auto layer = match(rule.name, param)) return Match{&rule, std::string(*layer), ""};
    if (auto layer = match(rule.name, param.substr(0, dot))) {
      return Match{&rule, std::string(*layer), std::string(param.substr(dot))};
    }
  }
  return std::nullopt;
}

HfTensor make_tensor(const std::vector<std::string>& names, const Shape& shape) {
  return {names.front(), {names.begin() + 1, names.end()}, shape};
}

// The sources of every expert.
void map_experts(const Match& found, const ModelFamily& family, ParamMapping& mapping) {
  const WeightRule& rule = *found.rule;
  Shape shape(mapping.shape.dims().subspan(1));
  shape[0] /= static_cast<std::int64_t>(rule.sources.size());
  for (std::int64_t expert = 0; expert < mapping.shape[0]; ++expert) {
    for (const std::string& source : rule.sources) {
      std::vector<std::string> names = spellings(rule, source, family);
      for (std::string& name : names) {
        name = with_number(with_number(name, found.layer), concat(expert)) + found.suffix;
      }
      mapping.tensors.push_back(make_tensor(names, shape));
    }
  }
  if (rule.other_source.empty()) return;
  for (const std::string& name : with_and_without_prefix(rule.other_source, family)) {
    mapping.whole_names.push_back(with_number(name, found.layer));
  }
}

ParamMapping map_param(const Param& param, const ModelConfig& config, const ModelFamily& family) {
  std::optional<Match> found = find_rule(param.name, family);
  BEV_CHECK(found.has_value(), ErrorKind::kConfig, family.name, " models have no weights for ",
            param.name);
  const WeightRule& rule = *found->rule;
  ParamMapping mapping{param.name, param.shape, rule.kind, config.head_size(), {}, {}};
  if (rule.kind == WeightKind::kExperts) {
    map_experts(*found, family, mapping);
    return mapping;
  }
  std::vector<std::int64_t> rows = part_rows(rule, config, param.shape);
  for (std::size_t part = 0; part < rule.sources.size(); ++part) {
    std::vector<std::string> names = spellings(rule, rule.sources[part], family);
    for (std::string& name : names) name = with_number(name, found->layer) + found->suffix;
    Shape shape = param.shape;
    shape[0] = rows[part];
    if (transposed(mapping)) std::swap(shape[0], shape[1]);
    mapping.tensors.push_back(make_tensor(names, shape));
  }
  return mapping;
}

// The name under which the files hold it; "" when they do not.
std::string stored_name(const HfTensor& tensor, const WeightFiles& files) {
  if (files.contains(tensor.name)) return tensor.name;
  for (const std::string& name : tensor.other_names) {
    if (files.contains(name)) return name;
  }
  return "";
}

// The name of a tensor that holds the whole parameter; "" when there is none.
std::string stored_whole(const ParamMapping& mapping, const WeightFiles& files) {
  for (const std::string& name : mapping.whole_names) {
    if (files.contains(name)) return name;
  }
  return "";
}

std::string describe(const StoredTensor& stored, const Shape& wanted) {
  if (!stored.dtype || !is_float(*stored.dtype)) {
    return concat(stored.name, " is stored as ", stored.dtype_name,
                  "; weights must be F64, F32, BF16 or F16");
  }
  if (!std::ranges::equal(stored.shape, wanted.dims())) {
    std::string found;
    for (std::int64_t dim : stored.shape) found += concat(found.empty() ? "" : ", ", dim);
    return concat(stored.name, " has shape [", found, "], config.json asks for ",
                  to_text(wanted));
  }
  return "";
}

void check_source(const HfTensor& tensor, const TensorBytes& source) {
  BEV_CHECK(is_float(source.dtype), ErrorKind::kInput, tensor.name, ": is stored as ",
            name_of(source.dtype), "; weights must be floating point");
  BEV_CHECK(source.shape == tensor.shape, ErrorKind::kInput, tensor.name, ": has shape ",
            source.shape, ", but the model needs ", tensor.shape);
  BEV_CHECK(
      source.bytes.size() == static_cast<std::size_t>(tensor.shape.numel()) * size_of(source.dtype),
      ErrorKind::kInput, tensor.name, ": has ", source.bytes.size(), " bytes of data");
}

std::byte* offset(void* base, std::int64_t elements, Dtype dtype) {
  return static_cast<std::byte*>(base) + static_cast<std::size_t>(elements) * size_of(dtype);
}
const std::byte* offset(const void* base, std::int64_t elements, Dtype dtype) {
  return static_cast<const std::byte*>(base) + static_cast<std::size_t>(elements) * size_of(dtype);
}
}  // namespace

WeightMap::WeightMap(const ModelConfig& config) {
  const ModelFamily& family = find_family(config.family);
  ignored_ = family.ignored;
  further_layers_ = family.further_layers;
  layers_ = config.num_layers;
  Decoder decoder(config, even_stage(config.num_layers, 1, 0), {});
  for (const Param* param : decoder.params()) {
    params_.push_back(map_param(*param, config, family));
  }
  if (config.untie_embeddings_and_output_weights) return;
  Param head;
  head.name = "output_layer.weight";
  head.shape = params_.front().shape;
  HfTensor tensor = map_param(head, config, family).tensors.front();
  tied_heads_ = tensor.other_names;
  tied_heads_.insert(tied_heads_.begin(), tensor.name);
  // A file may hold the shared tensor under the head's name alone.
  std::vector<std::string>& names = params_.front().tensors.front().other_names;
  names.insert(names.end(), tied_heads_.begin(), tied_heads_.end());
}

const ParamMapping& WeightMap::find(std::string_view param) const {
  for (const ParamMapping& mapping : params_) {
    if (mapping.param == param) return mapping;
  }
  BEV_FAIL(ErrorKind::kInternal, "weight map: no parameter ", param);
}

bool WeightMap::ignores(std::string_view name) const {
  if (std::ranges::any_of(ignored_, [&](const auto& end) { return name.ends_with(end); })) {
    return true;
  }
  std::size_t at = further_layers_.find("{}");
  if (at == std::string::npos ||
      !name.starts_with(std::string_view(further_layers_).substr(0, at))) {
    return false;
  }
  std::int64_t layer = -1;
  std::from_chars(name.data() + at, name.data() + name.size(), layer);
  return layer >= layers_;
}

void WeightMap::check(const WeightFiles& files) const {
  std::vector<std::string> problems;
  std::set<std::string, std::less<>> used;
  auto use = [&](const std::string& name, const Shape& shape) {
    used.insert(name);
    std::string problem = describe(*files.find(name), shape);
    if (!problem.empty()) problems.push_back(problem);
  };
  for (const ParamMapping& mapping : params_) {
    if (std::string whole = stored_whole(mapping, files); !whole.empty()) {
      use(whole, mapping.shape);
      continue;
    }
    for (const HfTensor& tensor : mapping.tensors) {
      std::string name = stored_name(tensor, files);
      if (name.empty()) {
        problems.push_back(concat(tensor.name, " is missing"));
      } else {
        use(name, tensor.shape);
      }
    }
  }
  const HfTensor& embedding = params_.front().tensors.front();
  for (const std::string& head : tied_heads_) {
    if (!files.contains(head) || !used.insert(head).second) continue;
    const StoredTensor& mine = *files.find(head);
    const StoredTensor* shared = files.find(stored_name(embedding, files));
    if (shared == nullptr) continue;
    if (mine.dtype_name != shared->dtype_name || !std::ranges::equal(mine.bytes, shared->bytes)) {
      problems.push_back(concat(head, " differs from ", shared->name,
                                ", though config.json ties them (tie_word_embeddings)"));
    }
  }
  for (const std::string& name : files.names()) {
    if (!ignores(name) && !used.contains(name)) {
      problems.push_back(concat(name, " is not a weight of this model"));
    }
  }
  if (problems.empty()) return;
  constexpr std::size_t kShown = 8;
  std::size_t hidden = problems.size() - std::min(problems.size(), kShown);
  problems.resize(std::min(problems.size(), kShown));
  if (hidden > 0) problems.push_back(concat("and ", hidden, " more"));
  BEV_FAIL(ErrorKind::kInput, files.folder(), ": the weights do not fit config.json:\n  ",
           join(problems, "\n  "));
}

void assemble(const ParamMapping& mapping, std::span<const TensorBytes> sources, Dtype dtype,
              void* out) {
  BEV_CHECK(sources.size() == mapping.tensors.size(), ErrorKind::kInternal, mapping.param, ": ",
            sources.size(), " tensors for ", mapping.tensors.size());
  for (std::size_t i = 0; i < sources.size(); ++i) check_source(mapping.tensors[i], sources[i]);
  if (transposed(mapping)) {
    transpose_elements({sources[0].bytes.data(), sources[0].dtype}, {out, dtype}, mapping.shape[1],
                       mapping.shape[0]);
    return;
  }
  std::int64_t columns = columns_of(mapping);
  for (const RowRun& run : row_runs(mapping)) {
    Dtype from = sources[run.part].dtype;
    convert_elements({offset(sources[run.part].bytes.data(), run.tensor_row * columns, from), from},
                     {offset(out, run.param_row * columns, dtype), dtype}, run.count * columns);
  }
}

TensorBytes stored_tensor(const ParamMapping& mapping, std::size_t part, const WeightFiles& files) {
  const HfTensor& tensor = mapping.tensors[part];
  std::string whole = stored_whole(mapping, files);
  if (whole.empty()) {
    std::string name = stored_name(tensor, files);
    return files.tensor(name.empty() ? tensor.name : name);
  }
  TensorBytes all = files.tensor(whole);
  std::size_t item = size_of(all.dtype), begin = 0;
  for (std::size_t i = 0; i < part; ++i) {
    begin += static_cast<std::size_t>(mapping.tensors[i].shape.numel()) * item;
  }
  return {all.dtype, tensor.shape,
          all.bytes.subspan(begin, static_cast<std::size_t>(tensor.shape.numel()) * item)};
}

void read_param(const ParamMapping& mapping, const WeightFiles& files, Dtype dtype, void* out) {
  StoredParam(mapping, files).read({0, mapping.shape.numel()}, dtype, out);
}

StoredParam::StoredParam(const ParamMapping& mapping, const WeightFiles& files)
    : mapping_(mapping) {
  for (std::size_t part = 0; part < mapping.tensors.size(); ++part) {
    sources_.push_back(stored_tensor(mapping, part, files));
    check_source(mapping.tensors[part], sources_.back());
  }
}

void StoredParam::read(Range elements, Dtype dtype, void* out) {
  if (!in_order(mapping_)) {
    if (elements.size() == mapping_.shape.numel()) return assemble(mapping_, sources_, dtype, out);
    if (whole_.empty() || whole_dtype_ != dtype) {
      whole_.resize(static_cast<std::size_t>(mapping_.shape.numel()) * size_of(dtype));
      whole_dtype_ = dtype;
      assemble(mapping_, sources_, dtype, whole_.data());
    }
    std::memcpy(out, offset(whole_.data(), elements.begin, dtype),
                static_cast<std::size_t>(elements.size()) * size_of(dtype));
    return;
  }
  std::int64_t first = 0;  // element of a tensor in the parameter
  for (const TensorBytes& source : sources_) {
    std::int64_t end = first + source.shape.numel();
    Range common{std::max(elements.begin, first), std::min(elements.end, end)};
    if (common.begin < common.end) {
      convert_elements(
          {offset(source.bytes.data(), common.begin - first, source.dtype), source.dtype},
          {offset(out, common.begin - elements.begin, dtype), dtype}, common.size());
    }
    first = end;
  }
}

void split_param(const ParamMapping& mapping, std::size_t part, const void* value, Dtype dtype,
                 Dtype out_dtype, void* out) {
  if (transposed(mapping)) {
    transpose_elements({value, dtype}, {out, out_dtype}, mapping.shape[0], mapping.shape[1]);
    return;
  }
  std::int64_t columns = columns_of(mapping);
  for (const RowRun& run : row_runs(mapping)) {
    if (run.part != part) continue;
    convert_elements({offset(value, run.param_row * columns, dtype), dtype},
                     {offset(out, run.tensor_row * columns, out_dtype), out_dtype},
                     run.count * columns);
  }
}

std::optional<Range> rows_of_part(const ParamMapping& mapping, std::size_t part) {
  if (!in_order(mapping) || mapping.kind == WeightKind::kExperts) return std::nullopt;
  for (const RowRun& run : row_runs(mapping)) {
    if (run.part == part) return Range{run.param_row, run.param_row + run.count};
  }
  return std::nullopt;
}

std::vector<ExportTensor> export_tensors(const WeightMap& map, Dtype dtype) {
  std::vector<ExportTensor> tensors;
  for (std::size_t param = 0; param < map.params().size(); ++param) {
    const std::vector<HfTensor>& parts = map.params()[param].tensors;
    for (std::size_t part = 0; part < parts.size(); ++part) {
      tensors.push_back({{parts[part].name, dtype, parts[part].shape}, param, part});
    }
  }
  return tensors;
}

}  // namespace bev
