#include "bridge/weight_map.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"
#include "bridge/convert.h"
#include "bridge/expert_columns.h"
#include "bridge/mxfp4.h"
#include "bridge/nf4_tensor.h"
#include "models/lora.h"
#include "models/model.h"

namespace bev {

namespace {
// `count` rows of a Hugging Face tensor and their position in our parameter.
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
  if (reshaped(mapping)) return {{0, 0, 0, mapping.shape[0]}};
  for (std::size_t part = 0; part < mapping.tensors.size(); ++part) {
    std::int64_t rows = mapping.tensors[part].shape[0];
    runs.push_back({part, 0, row, rows});
    row += rows;
  }
  return runs;
}

// Row length of the parameter, in the sense of row_runs.
std::int64_t columns_of(const ParamMapping& mapping) {
  const Shape& shape = mapping.shape;
  if (mapping.kind == WeightKind::kExperts) return shape.row_numel() / shape[1];
  return shape.row_numel();
}

ExpertColumns columns_layout(const ParamMapping& mapping) {
  return {mapping.shape, mapping.kind == WeightKind::kGateUpColumns, mapping.shape.ndim() == 3};
}

// True if the concatenated tensors are the flattened parameter.
bool in_order(const ParamMapping& mapping) {
  return !transposed(mapping) && mapping.kind != WeightKind::kNeoxQkv && !has_columns(mapping);
}

// Name of the tensor in the files; "" if it is missing.
std::string stored_name(const HfTensor& tensor, const WeightFiles& files) {
  if (files.contains(tensor.name)) return tensor.name;
  for (const std::string& name : tensor.other_names) {
    if (files.contains(name)) return name;
  }
  return "";
}

// Name of a tensor with the whole parameter; "" if there is none.
std::string stored_whole(const ParamMapping& mapping, const WeightFiles& files) {
  for (const std::string& name : mapping.whole_names) {
    if (files.contains(name)) return name;
  }
  return "";
}

constexpr const char *kBlocks = "_blocks", *kScales = "_scales";

// Name of the MXFP4 tensor in the files; "" if there is none.
std::string packed_name(const ParamMapping& mapping, const WeightFiles& files) {
  if (!mapping.packed) return "";
  const HfTensor& tensor = mapping.tensors.front();
  if (files.contains(tensor.name + kBlocks)) return tensor.name;
  for (const std::string& name : tensor.other_names) {
    if (files.contains(name + kBlocks)) return name;
  }
  return "";
}

std::set<std::string, std::less<>> names_of_scales(const StoredTensor& stored,
                                                   const WeightFiles& files) {
  std::vector<std::string> names = scale_names(stored, files);
  return {names.begin(), names.end()};
}

std::string packed_problem(const ParamMapping& mapping, const std::string& name,
                           const WeightFiles& files) {
  const Shape& shape = mapping.shape;
  std::int64_t blocks = shape[2] / kMxfp4Block;
  auto differs = [&](const std::string& part, std::vector<std::int64_t> wanted) {
    const StoredTensor* stored = files.find(part);
    return stored == nullptr || stored->dtype != Dtype::kU8 ||
           !std::ranges::equal(stored->shape, wanted);
  };
  bool whole = shape[2] % kMxfp4Block == 0;
  if (!whole || differs(name + kBlocks, {shape[0], shape[1], blocks, kMxfp4Block / 2}) ||
      differs(name + kScales, {shape[0], shape[1], blocks})) {
    return concat(name, kBlocks, " and ", name, kScales, " are not ", to_text(shape),
                  " numbers in MXFP4 (U8)");
  }
  return "";
}

// The shape that a quantised tensor has. Weights of Conv1D modules, which are transposed in files
// of floats, are quantised in the order of ours.
const Shape& quantized_shape(const ParamMapping& mapping, const StoredTensor& stored,
                             const Shape& shape, const WeightFiles& files) {
  return transposed(mapping) && is_nf4(stored, files) ? mapping.shape : shape;
}

// Why a tensor of the files is not one of this shape; "" if it is.
std::string stored_problem(const ParamMapping& mapping, const StoredTensor& stored,
                           const Shape& shape, const WeightFiles& files) {
  if (is_quantized(stored, files)) {
    return quantized_problem(stored, quantized_shape(mapping, stored, shape, files), files);
  }
  if (!stored.dtype || !is_float(*stored.dtype)) {
    return concat(stored.name, " is stored as ", stored.dtype_name,
                  "; weights must be F64, F32, BF16, F16, F8_E4M3 with scales or NF4");
  }
  try {
    check_stored_shape(stored, shape);
  } catch (const Error& error) {
    return error.what();
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
  layers_ = config.num_layers + config.mtp_num_layers;
  for (const Param& param : declare_params(without_adapters(config))) {
    params_.push_back(map_param(param, config, family));
    params_.back().format = param.format;
    params_.back().linear = param.linear;
  }
  if (config.untie_embeddings_and_output_weights && config.num_labels == 0) return;
  Param head;
  head.name = "output_layer.weight";
  head.shape = params_.front().shape;
  HfTensor tensor = map_param(head, config, family).tensors.front();
  if (config.num_labels > 0) {
    // The head of the language model that a model was made of has no use.
    ignored_.push_back(tensor.name);
    return;
  }
  tied_heads_ = tensor.other_names;
  tied_heads_.insert(tied_heads_.begin(), tensor.name);
  // A file may hold the tied tensor under the head's name only.
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

std::vector<std::string> WeightMap::heads_not_in(const WeightMap& other,
                                                 const WeightFiles& files) const {
  constexpr std::string_view kHeads[] = {kLabelHead,     "classifier.", "pooler.",
                                         "binary_head.", "lm_head.",    "output_layer.bias"};
  std::set<std::string, std::less<>> names;
  for (const ParamMapping& mapping : other.params_) {
    for (const HfTensor& tensor : mapping.tensors) {
      names.insert(tensor.name);
      names.insert(tensor.other_names.begin(), tensor.other_names.end());
    }
  }
  std::vector<std::string> missing;
  for (const ParamMapping& mapping : params_) {
    const HfTensor& tensor = mapping.tensors.front();
    const bool head = std::ranges::any_of(
        kHeads, [&](std::string_view begin) { return mapping.param.starts_with(begin); });
    const bool there = names.contains(tensor.name) || !stored_name(tensor, files).empty();
    if (head && !there) missing.push_back(mapping.param);
  }
  return missing;
}

void WeightMap::check(const WeightFiles& files, std::span<const std::string> absent) const {
  std::vector<std::string> problems;
  std::set<std::string, std::less<>> used;
  auto use = [&](const ParamMapping& mapping, const std::string& name, const Shape& shape) {
    used.insert(name);
    const StoredTensor& stored = *files.find(name);
    std::string problem = stored_problem(mapping, stored, shape, files);
    if (!problem.empty()) problems.push_back(problem);
    if (is_quantized(stored, files)) used.merge(names_of_scales(stored, files));
  };
  for (const ParamMapping& mapping : params_) {
    if (std::string whole = stored_whole(mapping, files); !whole.empty()) {
      use(mapping, whole, mapping.shape);
      continue;
    }
    if (std::string packed = packed_name(mapping, files); !packed.empty()) {
      std::string problem = packed_problem(mapping, packed, files);
      if (!problem.empty()) problems.push_back(problem);
      used.insert(packed + kBlocks);
      used.insert(packed + kScales);
      continue;
    }
    for (const HfTensor& tensor : mapping.tensors) {
      std::string name = stored_name(tensor, files);
      if (name.empty() && std::ranges::find(absent, mapping.param) != absent.end()) continue;
      if (name.empty()) {
        problems.push_back(concat(tensor.name, " is missing"));
      } else {
        use(mapping, name, tensor.shape);
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
  BEV_FAIL(ErrorKind::kInput, files.folder(), ": the weights do not fit ", described_by_, ":\n  ",
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
  if (has_columns(mapping)) {
    read_expert_columns(columns_layout(mapping), {sources[0].bytes.data(), sources[0].dtype},
                        {out, dtype});
    return;
  }
  std::int64_t columns = columns_of(mapping);
  for (const RowRun& run : row_runs(mapping)) {
    Dtype from = sources[run.part].dtype;
    convert_elements({offset(sources[run.part].bytes.data(), run.tensor_row * columns, from), from},
                     {offset(out, run.param_row * columns, dtype), dtype}, run.count * columns);
  }
}

namespace {
// Header entry of the tensor if it is quantised; nullptr otherwise.
const StoredTensor* find_quantized(const ParamMapping& mapping, std::size_t part,
                                   const WeightFiles& files) {
  if (!stored_whole(mapping, files).empty()) return nullptr;
  const StoredTensor* stored = files.find(stored_name(mapping.tensors[part], files));
  return stored != nullptr && is_quantized(*stored, files) ? stored : nullptr;
}
}  // namespace

Dtype dtype_of_part(const ParamMapping& mapping, std::size_t part, const WeightFiles& files) {
  if (!packed_name(mapping, files).empty()) return Dtype::kBf16;
  if (const StoredTensor* stored = find_quantized(mapping, part, files)) {
    const Shape& shape = mapping.tensors[part].shape;
    return open_quantized(*stored, quantized_shape(mapping, *stored, shape, files), files)->dtype();
  }
  return stored_tensor(mapping, part, files).dtype;
}

std::unique_ptr<StoredNf4> open_nf4_part(const ParamMapping& mapping, std::size_t part,
                                         const WeightFiles& files) {
  if (!packed_name(mapping, files).empty()) return nullptr;
  const StoredTensor* stored = find_quantized(mapping, part, files);
  if (stored == nullptr || !is_nf4(*stored, files)) return nullptr;
  const Shape& shape = mapping.tensors[part].shape;
  return std::make_unique<StoredNf4>(*stored, quantized_shape(mapping, *stored, shape, files),
                                     files);
}

std::vector<PartRun> part_runs(const ParamMapping& mapping, std::size_t part) {
  if (transposed(mapping) || has_columns(mapping)) return {{0, 0, mapping.shape.numel()}};
  std::int64_t columns = columns_of(mapping);
  std::vector<PartRun> runs;
  for (const RowRun& run : row_runs(mapping)) {
    if (run.part != part) continue;
    runs.push_back({run.tensor_row * columns, run.param_row * columns, run.count * columns});
  }
  return runs;
}

bool stored_packed(const ParamMapping& mapping, std::size_t part, const WeightFiles& files) {
  return !packed_name(mapping, files).empty() || find_quantized(mapping, part, files) != nullptr;
}

TensorBytes stored_tensor(const ParamMapping& mapping, std::size_t part, const WeightFiles& files) {
  const HfTensor& tensor = mapping.tensors[part];
  std::string whole = stored_whole(mapping, files);
  if (whole.empty()) {
    std::string name = stored_name(tensor, files);
    return files.tensor(name.empty() ? tensor.name : name);
  }
  TensorBytes all = files.tensor(whole);
  Range elements = *elements_of_part(mapping, part);
  std::size_t item = size_of(all.dtype);
  return {all.dtype, tensor.shape,
          all.bytes.subspan(static_cast<std::size_t>(elements.begin) * item,
                            static_cast<std::size_t>(elements.size()) * item)};
}

void read_param(const ParamMapping& mapping, const WeightFiles& files, Dtype dtype, void* out) {
  StoredParam(mapping, files).read({0, mapping.shape.numel()}, dtype, out);
}

StoredParam::StoredParam(const ParamMapping& mapping, const WeightFiles& files)
    : mapping_(mapping), in_order_(in_order(mapping)) {
  if (std::string packed = packed_name(mapping, files); !packed.empty()) {
    std::string problem = packed_problem(mapping, packed, files);
    BEV_CHECK(problem.empty(), ErrorKind::kInput, problem);
    // Rows in the file's order, then in ours.
    std::vector<std::byte> rows(static_cast<std::size_t>(mapping.shape.numel()) * sizeof(Bf16));
    expanded_.resize(rows.size());
    expand_mxfp4(files.tensor(packed + kBlocks).bytes, files.tensor(packed + kScales).bytes,
                 rows.data());
    ExpertColumns layout = columns_layout(mapping);
    layout.transposed = false;
    read_expert_columns(layout, {rows.data(), Dtype::kBf16}, {expanded_.data(), Dtype::kBf16});
    return;
  }
  quantized_.resize(mapping.tensors.size());
  for (std::size_t part = 0; part < mapping.tensors.size(); ++part) {
    const HfTensor& tensor = mapping.tensors[part];
    if (const StoredTensor* stored = find_quantized(mapping, part, files)) {
      const Shape& shape = quantized_shape(mapping, *stored, tensor.shape, files);
      quantized_[part] = open_quantized(*stored, shape, files);
      in_order_ = in_order_ || (transposed(mapping) && is_nf4(*stored, files));
      sources_.push_back({Dtype::kF32, tensor.shape, {}});
      if (in_order_) continue;
      std::vector<std::byte>& whole = dequantized_.emplace_back(
          static_cast<std::size_t>(tensor.shape.numel()) * size_of(Dtype::kF32));
      quantized_[part]->read({0, tensor.shape.numel()}, Dtype::kF32, whole.data());
      sources_.back().bytes = whole;
      continue;
    }
    sources_.push_back(stored_tensor(mapping, part, files));
    check_source(tensor, sources_.back());
  }
}

void StoredParam::read(Range elements, Dtype dtype, void* out) {
  if (!expanded_.empty()) {
    convert_elements({offset(expanded_.data(), elements.begin, Dtype::kBf16), Dtype::kBf16},
                     {out, dtype}, elements.size());
    return;
  }
  if (!in_order_) {
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
  std::int64_t first = 0;  // element offset of a tensor in the parameter
  for (std::size_t part = 0; part < sources_.size(); ++part) {
    const TensorBytes& source = sources_[part];
    std::int64_t end = first + source.shape.numel();
    Range common{std::max(elements.begin, first), std::min(elements.end, end)};
    Range own{common.begin - first, common.end - first};
    std::byte* to = offset(out, common.begin - elements.begin, dtype);
    if (own.begin < own.end && quantized_[part]) {
      quantized_[part]->read(own, dtype, to);
    } else if (own.begin < own.end) {
      convert_elements({offset(source.bytes.data(), own.begin, source.dtype), source.dtype},
                       {to, dtype}, own.size());
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
  if (has_columns(mapping)) {
    write_expert_columns(columns_layout(mapping), {value, dtype}, {out, out_dtype});
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

std::optional<Range> elements_of_part(const ParamMapping& mapping, std::size_t part) {
  if (!in_order(mapping)) return std::nullopt;
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < part; ++i) begin += mapping.tensors[i].shape.numel();
  return Range{begin, begin + mapping.tensors[part].shape.numel()};
}

std::vector<ExportTensor> export_tensors(const WeightMap& map, Dtype dtype) {
  std::vector<ExportTensor> tensors;
  for (std::size_t param = 0; param < map.params().size(); ++param) {
    const ParamMapping& mapping = map.params()[param];
    Dtype stored = stored_dtype(mapping.format, dtype);
    for (std::size_t part = 0; part < mapping.tensors.size(); ++part) {
      const HfTensor& tensor = mapping.tensors[part];
      tensors.push_back({{tensor.name, stored, tensor.shape}, param, part});
    }
  }
  return tensors;
}

}  // namespace bev
