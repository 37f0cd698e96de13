#include "checkpoint/manifest.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "base/divide.h"
#include "base/error.h"
#include "base/fields.h"
#include "base/json_check.h"
#include "checkpoint/checksum.h"

namespace bev {

namespace {

using Json = nlohmann::ordered_json;

constexpr char kFormat[] = "bevatron-checkpoint";
constexpr int kVersion = 1;
constexpr int kMostNesting = 8;

template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  BEV_FAIL(ErrorKind::kInput, parts...);
}

}  // namespace

void TrainingState::fields(FieldList& list) {
  using Style = LrSchedule::Style;
  using WsdStyle = LrSchedule::WsdStyle;
  using DecayStyle = WeightDecaySchedule::Style;
  auto count = [&](const char* name, std::int64_t& value) { list.add(name, value, "").min(0); };
  count("iteration", iteration);
  count("consumed_samples", consumed_samples);
  count("scheduled_samples", scheduled_samples);
  count("consumed_tokens", consumed_tokens);
  count("skipped_iterations", skipped);
  count("updates", updates);
  count("seed", seed);
  list.add("loss_scale", scaler.scale, "").above(0);
  count("loss_scale_growth_counter", scaler.growth_counter);
  list.add("loss_scale_hysteresis_counter", scaler.hysteresis_counter, "");
  list.add("max_lr", lr.max_lr, "").min(0);
  list.add("min_lr", lr.min_lr, "").min(0);
  list.add("lr_warmup_init", lr.init_lr, "").min(0);
  list.add("lr_warmup_steps", lr.warmup_steps, "").min(0);
  list.add("lr_decay_steps", lr.decay_steps, "").min(0);
  list.add("lr_decay_style", lr.style,
           {{"constant", Style::kConstant},
            {"linear", Style::kLinear},
            {"cosine", Style::kCosine},
            {"inverse-square-root", Style::kInverseSquareRoot},
            {"WSD", Style::kWsd}},
           "");
  list.add("wsd_decay_style", lr.wsd_style,
           {{"exponential", WsdStyle::kExponential},
            {"linear", WsdStyle::kLinear},
            {"cosine", WsdStyle::kCosine},
            {"minus_sqrt", WsdStyle::kMinusSqrt}},
           "");
  list.add("wsd_decay_steps", lr.wsd_decay_steps, "").min(0);
  list.add("start_wd", weight_decay.start, "");
  list.add("end_wd", weight_decay.end, "");
  list.add("wd_incr_style", weight_decay.style,
           {{"constant", DecayStyle::kConstant},
            {"linear", DecayStyle::kLinear},
            {"cosine", DecayStyle::kCosine}},
           "");
  list.add("wd_incr_steps", weight_decay.steps, "").min(0);
  validation.fields(list);
}

std::string piece_name(std::string_view tensor, const Box& box) { return concat(tensor, box); }

std::optional<std::pair<std::string, Box>> parse_piece_name(std::string_view name) {
  std::size_t bracket = name.rfind('[');
  if (bracket == std::string_view::npos || bracket == 0) return std::nullopt;
  std::optional<Box> box = parse_box(name.substr(bracket));
  if (!box) return std::nullopt;
  return std::pair(std::string(name.substr(0, bracket)), *box);
}

namespace {
Json shard_object(const ShardEntry& shard) {
  Json sums = Json::array();
  for (std::uint64_t sum : shard.checksums) sums.push_back(checksum_text(sum));
  return {{"file", shard.file},
          {"bytes", shard.bytes},
          {"xxh3", std::move(sums)},
          {"pieces", shard.pieces}};
}
}  // namespace

std::string shard_json(const ShardEntry& shard) { return shard_object(shard).dump(); }

std::string manifest_json(Manifest manifest) {
  Json json;
  json["format"] = kFormat;
  json["version"] = kVersion;
  json["program_version"] = manifest.program_version;
  FieldList state;
  manifest.state.fields(state);
  for (const auto& entry : state.entries()) {
    const Field& field = entry->field;
    // The text of a number is valid JSON.
    json["state"][field.name()] =
        field.is_number() ? Json::parse(field.text()) : Json(field.text());
  }
  json["config"] = Json::object();
  for (const ConfigEntry& entry : manifest.config) {
    json["config"][entry.section][entry.name] = entry.value;
  }
  for (const auto& [name, tensor] : manifest.tensors) {
    json["tensors"][name] = {{"dtype", name_of(tensor.dtype)}, {"shape", tensor.shape.dims()}};
  }
  for (const auto& [name, updates] : manifest.late_starts) json["late_starts"][name] = updates;
  json["block_bytes"] = kBlockBytes;
  json["shards"] = Json::array();
  for (const ShardEntry& shard : manifest.shards) json["shards"].push_back(shard_object(shard));
  return json.dump(1) + "\n";
}

namespace {

// Parses member by member; every error names the file and the location.
class ManifestParser {
 public:
  ManifestParser(const Json& json, const std::string& path) : json_(json), path_(path) {}

  Manifest parse_all() {
    if (text(json_, "format", "") != kFormat) fail(path_, ": is no manifest of a checkpoint");
    std::int64_t version = number(json_, "version", "");
    if (version != kVersion) {
      fail(path_, ": version ", version, "; this program reads version ", kVersion,
           "; a newer one wrote it");
    }
    if (number(json_, "block_bytes", "") != static_cast<std::int64_t>(kBlockBytes)) {
      fail(path_, ": block_bytes is not ", kBlockBytes);
    }
    manifest_.program_version = text(json_, "program_version", "");
    parse_state();
    parse_config();
    parse_tensors();
    parse_late_starts();
    for (const Json& shard : member(json_, "shards", "", Json::value_t::array)) {
      manifest_.shards.push_back(parse_shard(shard));
    }
    return std::move(manifest_);
  }

  ShardEntry parse_shard(const Json& json) const {
    if (!json.is_object()) fail(path_, ": shards: an entry is no object");
    ShardEntry shard;
    shard.file = text(json, "file", "shard: ");
    std::string where = concat("shard ", quote(shard.file), ": ");
    bool plain = shard.file.find('/') == std::string::npos && !shard.file.starts_with('.');
    if (shard.file.empty() || !plain) fail(path_, ": ", where, "is no name of a file in here");
    shard.bytes = static_cast<std::uint64_t>(number(json, "bytes", where));
    for (const Json& sum : member(json, "xxh3", where, Json::value_t::array)) {
      shard.checksums.push_back(parse_sum(sum, where));
    }
    if (shard.checksums.size() != ceil_div(shard.bytes, kBlockBytes)) {
      fail(path_, ": ", where, shard.checksums.size(), " checksums for ", shard.bytes, " bytes");
    }
    for (const Json& piece : member(json, "pieces", where, Json::value_t::array)) {
      if (!piece.is_string()) fail(path_, ": ", where, "a piece is no text");
      shard.pieces.push_back(piece.get<std::string>());
    }
    return shard;
  }

 private:
  const Json& member(const Json& in, const std::string& key, const std::string& where,
                     Json::value_t type) const {
    auto found = in.find(key);
    if (found == in.end()) fail(path_, ": ", where, "no ", quote(key));
    bool fits = type == Json::value_t::number_unsigned ? found->is_number_unsigned()
                                                       : found->type() == type;
    if (!fits) fail(path_, ": ", where, quote(key), " is a ", found->type_name());
    return *found;
  }
  std::string text(const Json& in, const std::string& key, const std::string& where) const {
    return member(in, key, where, Json::value_t::string).get<std::string>();
  }
  std::int64_t number(const Json& in, const std::string& key, const std::string& where) const {
    auto value = member(in, key, where, Json::value_t::number_unsigned).get<std::uint64_t>();
    if (value > std::uint64_t{INT64_MAX}) fail(path_, ": ", where, quote(key), " is too large");
    return static_cast<std::int64_t>(value);
  }

  void parse_state() {
    const Json& state = member(json_, "state", "", Json::value_t::object);
    FieldList list;
    manifest_.state.fields(list);
    for (const auto& entry : list.entries()) {
      Field& field = entry->field;
      auto found = state.find(field.name());
      if (found == state.end() && entry->section == ValidationState::kSection) continue;
      if (found == state.end()) fail(path_, ": state: no ", quote(field.name()));
      std::string value = found->is_string() ? found->get<std::string>() : found->dump();
      std::string problem = field.set_text(value);
      if (!problem.empty()) fail(path_, ": state: ", field.name(), ": ", problem);
    }
  }

  void parse_config() {
    for (const auto& [section, values] :
         member(json_, "config", "", Json::value_t::object).items()) {
      if (!values.is_object()) fail(path_, ": config: ", quote(section), " is no object");
      for (const auto& [name, value] : values.items()) {
        if (!value.is_string()) fail(path_, ": config: ", quote(name), " is no text");
        manifest_.config.push_back({section, name, value.get<std::string>()});
      }
    }
  }

  void parse_tensors() {
    for (const auto& [name, entry] : member(json_, "tensors", "", Json::value_t::object).items()) {
      std::string where = concat("tensor ", quote(name), ": ");
      if (!entry.is_object()) fail(path_, ": ", where, "is no object");
      std::optional<Dtype> dtype = parse_dtype(text(entry, "dtype", where));
      if (!dtype) fail(path_, ": ", where, "unknown dtype ", quote(text(entry, "dtype", where)));
      std::vector<std::int64_t> dims;
      std::int64_t bytes = static_cast<std::int64_t>(size_of(*dtype));
      for (const Json& dim : member(entry, "shape", where, Json::value_t::array)) {
        bool fits = dim.is_number_unsigned() && dim.get<std::uint64_t>() > 0 &&
                    dim.get<std::uint64_t>() <= std::uint64_t{INT64_MAX};
        if (!fits || __builtin_mul_overflow(bytes, dim.get<std::int64_t>(), &bytes)) {
          fail(path_, ": ", where, "impossible shape ", quote(entry["shape"].dump()));
        }
        dims.push_back(dim.get<std::int64_t>());
      }
      if (dims.size() > Shape::kMaxDims) fail(path_, ": ", where, dims.size(), " dims");
      manifest_.tensors[name] = {*dtype, Shape(dims)};
    }
  }

  // Most checkpoints have none.
  void parse_late_starts() {
    if (!json_.contains("late_starts")) return;
    const Json& starts = member(json_, "late_starts", "", Json::value_t::object);
    for (const auto& entry : starts.items()) {
      manifest_.late_starts[entry.key()] = number(starts, entry.key(), "late_starts: ");
    }
  }

  std::uint64_t parse_sum(const Json& json, const std::string& where) const {
    std::string text = json.is_string() ? json.get<std::string>() : "";
    std::uint64_t sum = 0;
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), sum, 16);
    bool fits = error == std::errc() && end == text.data() + text.size() && text.size() == 16;
    if (!fits) fail(path_, ": ", where, quote(json.dump()), " is no checksum");
    return sum;
  }

  const Json& json_;
  const std::string& path_;
  Manifest manifest_;
};

// Every element of the tensor must be in exactly one box.
void check_tiling(const std::string& name, const GlobalTensor& tensor, std::vector<Box>& boxes,
                  const std::string& path) {
  std::int64_t elements = 0;
  Box whole = whole_box(tensor.shape);
  for (const Box& box : boxes) {
    if (box.ndim() != whole.ndim() || intersection(box, whole) != box) {
      fail(path, ": piece ", quote(piece_name(name, box)), " is not within ", tensor.shape);
    }
    if (__builtin_add_overflow(elements, box.numel(), &elements)) elements = -1;
  }
  if (elements != tensor.shape.numel()) {
    fail(path, ": the pieces of ", quote(name), " have ", elements, " elements, ", tensor.shape,
         " has ", tensor.shape.numel());
  }
  if (whole.ndim() == 0) return;
  std::ranges::sort(boxes, {}, [](const Box& box) { return box.begin[0]; });
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    for (std::size_t j = i + 1; j < boxes.size() && boxes[j].begin[0] < boxes[i].end[0]; ++j) {
      if (!intersection(boxes[i], boxes[j])) continue;
      fail(path, ": pieces ", quote(piece_name(name, boxes[i])), " and ",
           quote(piece_name(name, boxes[j])), " overlap");
    }
  }
}

}  // namespace

void check_manifest(const Manifest& manifest, const std::string& path) {
  std::map<std::string, std::vector<Box>> boxes;
  for (const auto& [name, tensor] : manifest.tensors) boxes[name];
  for (const ShardEntry& shard : manifest.shards) {
    for (const std::string& piece : shard.pieces) {
      auto parsed = parse_piece_name(piece);
      auto found = parsed ? boxes.find(parsed->first) : boxes.end();
      if (found == boxes.end()) {
        fail(path, ": shard ", quote(shard.file), ": ", quote(piece), " is no piece of a tensor");
      }
      found->second.push_back(parsed->second);
    }
  }
  for (auto& [name, list] : boxes) check_tiling(name, manifest.tensors.at(name), list, path);
}

ShardEntry parse_shard_json(std::string_view text, const std::string& path) {
  check_json(text, path, kMostNesting);
  Json json = Json::parse(text);
  return ManifestParser(json, path).parse_shard(json);
}

Manifest parse_manifest_part(std::string_view text, const std::string& path) {
  check_json(text, path, kMostNesting);
  Json json = Json::parse(text);
  if (!json.is_object()) fail(path, ": is no object");
  return ManifestParser(json, path).parse_all();
}

Manifest parse_manifest(std::string_view text, const std::string& path) {
  Manifest manifest = parse_manifest_part(text, path);
  check_manifest(manifest, path);
  return manifest;
}

}  // namespace bev
