#include "app/run_record.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json_check.h"

namespace bev {

namespace {
using Json = nlohmann::ordered_json;

constexpr std::string_view kFormat = "bevatron-run";
constexpr int kVersion = 1;
}  // namespace

std::string run_record_json(const Options& options, std::int64_t text_tokens) {
  Json flags = Json::object();
  for (const Setting& setting : options.settings()) flags[setting.field] = setting.values;
  Json json{{"format", kFormat},
            {"version", kVersion},
            {"folder", std::filesystem::current_path().native()},
            {"text_tokens", text_tokens},
            {"flags", std::move(flags)}};
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

RunRecord read_run_record(const std::string& path) {
  constexpr int kMaxDepth = 8;
  const Json json = Json::parse(read_json_object(path, kMaxDepth));
  RunRecord record{path};
  auto check = [&](bool good, const char* what) {
    BEV_CHECK(good, ErrorKind::kInput, path, ": ", what,
              "; give the flags of model, data and training instead");
  };
  check(json.value("format", Json()) == kFormat, "is no record of a run");
  check(json.value("version", Json()) == kVersion, "has another version, of a newer program");
  Json folder = json.value("folder", Json()), flags = json.value("flags", Json());
  check(folder.is_string() && flags.is_object(), "has no folder or no flags");
  record.folder = folder.get<std::string>();
  Json tokens = json.value("text_tokens", Json(0));
  if (tokens.is_number_integer()) record.text_tokens = tokens.get<std::int64_t>();
  for (const auto& [name, values] : flags.items()) {
    bool texts = values.is_array() && !values.empty() &&
                 std::ranges::all_of(values, [](const Json& value) { return value.is_string(); });
    check(texts, "has a flag whose values are no texts");
    record.settings.push_back({name, values.get<std::vector<std::string>>(), path, true});
  }
  return record;
}

}  // namespace bev
