#include "infer/end_tokens.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/json_check.h"

namespace bev {

namespace {
using Json = nlohmann::json;

constexpr const char* kKey = "eos_token_id";
constexpr int kMaxDepth = 64;

std::vector<std::int32_t> token_ids(const Json& object, const char* key, const std::string& path) {
  auto found = object.find(key);
  if (found == object.end() || found->is_null()) return {};
  std::vector<std::int32_t> tokens;
  for (const Json& value : found->is_array() ? *found : Json::array({*found})) {
    constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
    // A number above 2^63 is stored unsigned.
    bool fits = value.is_number_integer() &&
                (value.is_number_unsigned() ? value.get<std::uint64_t>() <= std::uint64_t{kMost}
                                            : value.get<std::int64_t>() >= -1);
    BEV_CHECK(fits, ErrorKind::kInput, path, ": ", key, " holds ",
              value.is_structured() ? value.type_name() : quote(value.dump(-1, ' ', true), 40),
              ", not a token id");
    // Some files use -1 for none.
    if (value.get<std::int64_t>() >= 0) tokens.push_back(value.get<std::int32_t>());
  }
  return tokens;
}
}  // namespace

namespace {
Json read_object(const std::string& written, const std::string& source) {
  const std::string text = mark_python_numbers(written);
  check_json(text, source, kMaxDepth);
  Json object = Json::parse(text);
  BEV_CHECK(object.is_object(), ErrorKind::kInput, source, ": not a JSON object");
  return object;
}
}  // namespace

std::int32_t read_token_id(const std::string& folder, const char* key) {
  for (const char* name : {"generation_config.json", "config.json"}) {
    std::string path = join_path(folder, name);
    if (!path_exists(path)) continue;
    std::vector<std::int32_t> tokens = token_ids(read_object(read_file(path), path), key, path);
    BEV_CHECK(tokens.size() <= 1, ErrorKind::kInput, path, ": ", key, " holds ", tokens.size(),
              " token ids; one is meant");
    if (!tokens.empty()) return tokens.front();
  }
  return -1;
}

std::vector<std::int32_t> end_tokens_in(const std::string& written, const std::string& source) {
  const Json object = read_object(written, source);
  std::vector<std::int32_t> tokens = token_ids(object, kKey, source);
  if (!tokens.empty() || !object.contains("text_config")) return tokens;
  const Json& inner = object["text_config"];
  return inner.is_object() ? token_ids(inner, kKey, source + ": text_config") : tokens;
}

std::vector<std::int32_t> read_end_tokens(const std::string& folder) {
  for (const char* name : {"generation_config.json", "config.json"}) {
    std::string path = join_path(folder, name);
    if (!path_exists(path)) continue;
    std::vector<std::int32_t> tokens = end_tokens_in(read_file(path), path);
    if (!tokens.empty()) return tokens;
  }
  return {};
}

}  // namespace bev
