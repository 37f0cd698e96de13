#include "bridge/weight_map.h"

#include <algorithm>
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

bool transposed(const ParamMapping& mapping) {
  return mapping.kind == WeightKind::kTranspose && mapping.shape.ndim() == 2;
}

std::string with_layer(std::string_view pattern, std::string_view layer) {
  std::size_t at = pattern.find("{}");
  if (at == std::string_view::npos) return std::string(pattern);
  return concat(pattern.substr(0, at), layer, pattern.substr(at + 2));
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

// All names under which files may hold `source`, the one we write first.
std::vector<std::string> spellings(const WeightRule& rule, const std::string& source,
                                   const ModelFamily& family) {
  std::vector<std::string> names = {source};
  if (!rule.other_source.empty()) names.push_back(rule.other_source);
  if (source.starts_with(family.weight_prefix)) {
    names.push_back(source.substr(family.weight_prefix.size()));
  }
  return names;
}

ParamMapping map_param(const Param& param, const ModelConfig& config, const ModelFamily& family) {
  std::size_t dot = param.name.rfind('.');
  std::string module = param.name.substr(0, dot), suffix = param.name.substr(dot);
  for (const WeightRule& rule : family.weights) {
    std::optional<std::string_view> layer = match(rule.name, module);
    if (!layer) continue;
    ParamMapping mapping{param.name, param.shape, rule.kind, config.head_size(), {}};
    std::vector<std::int64_t> rows = part_rows(rule, config, param.shape);
    for (std::size_t part = 0; part < rule.sources.size(); ++part) {
      HfTensor tensor;
      for (const std::string& name : spellings(rule, rule.sources[part], family)) {
        tensor.other_names.push_back(with_layer(name, *layer) + suffix);
      }
      tensor.name = tensor.other_names.front();
      tensor.other_names.erase(tensor.other_names.begin());
      tensor.shape = param.shape;
      tensor.shape[0] = rows[part];
      if (transposed(mapping)) std::swap(tensor.shape[0], tensor.shape[1]);
      mapping.tensors.push_back(std::move(tensor));
    }
    return mapping;
  }
  BEV_FAIL(ErrorKind::kConfig, family.name, " models have no weights for ", param.name);
}

// The name under which the files hold it; "" when they do not.
std::string stored_name(const HfTensor& tensor, const WeightFiles& files) {
  if (files.contains(tensor.name)) return tensor.name;
  for (const std::string& name : tensor.other_names) {
    if (files.contains(name)) return name;
  }
  return "";
}

std::string describe(const StoredTensor& stored, const HfTensor& wanted) {
  if (!stored.dtype || !is_float(*stored.dtype)) {
    return concat(stored.name, " is stored as ", stored.dtype_name,
                  "; weights must be F64, F32, BF16 or F16");
  }
  if (!std::ranges::equal(stored.shape, wanted.shape.dims())) {
    std::string found;
    for (std::int64_t dim : stored.shape) found += concat(found.empty() ? "" : ", ", dim);
    return concat(stored.name, " has shape [", found, "], config.json asks for ",
                  to_text(wanted.shape));
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

void WeightMap::check(const WeightFiles& files) const {
  std::vector<std::string> problems;
  std::set<std::string, std::less<>> used;
  for (const ParamMapping& mapping : params_) {
    for (const HfTensor& tensor : mapping.tensors) {
      std::string name = stored_name(tensor, files);
      std::string problem =
          name.empty() ? concat(tensor.name, " is missing") : describe(*files.find(name), tensor);
      if (!problem.empty()) problems.push_back(problem);
      used.insert(name);
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
    bool ignored =
        std::ranges::any_of(ignored_, [&](const auto& end) { return name.ends_with(end); });
    if (!ignored && !used.contains(name)) {
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
  std::int64_t columns = mapping.shape.row_numel();
  for (const RowRun& run : row_runs(mapping)) {
    Dtype from = sources[run.part].dtype;
    convert_elements({offset(sources[run.part].bytes.data(), run.tensor_row * columns, from), from},
                     {offset(out, run.param_row * columns, dtype), dtype}, run.count * columns);
  }
}

TensorBytes stored_tensor(const HfTensor& tensor, const WeightFiles& files) {
  std::string name = stored_name(tensor, files);
  return files.tensor(name.empty() ? tensor.name : name);
}

void read_param(const ParamMapping& mapping, const WeightFiles& files, Dtype dtype, void* out) {
  StoredParam(mapping, files).read({0, mapping.shape.numel()}, dtype, out);
}

StoredParam::StoredParam(const ParamMapping& mapping, const WeightFiles& files)
    : mapping_(mapping) {
  for (const HfTensor& tensor : mapping.tensors) {
    sources_.push_back(stored_tensor(tensor, files));
    check_source(tensor, sources_.back());
  }
}

void StoredParam::read(Range elements, Dtype dtype, void* out) {
  if (!rows_of_part(mapping_, 0)) {
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
  std::int64_t columns = mapping.shape.row_numel();
  for (const RowRun& run : row_runs(mapping)) {
    if (run.part != part) continue;
    convert_elements({offset(value, run.param_row * columns, dtype), dtype},
                     {offset(out, run.tensor_row * columns, out_dtype), out_dtype},
                     run.count * columns);
  }
}

std::optional<Range> rows_of_part(const ParamMapping& mapping, std::size_t part) {
  if (transposed(mapping) || mapping.kind == WeightKind::kNeoxQkv) return std::nullopt;
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
