#include "data/sft/json_rows.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json_check.h"

namespace bev {

namespace {
using Json = nlohmann::json;

constexpr int kMaxDepth = 16;  // ignored keys may nest a little

const Json& json_of(const void* value) { return *static_cast<const Json*>(value); }

// Returns value after checking that it is a non-empty array.
const Json& list(const Json& value, const std::string& where, const char* of_what) {
  BEV_CHECK(value.is_array(), ErrorKind::kInput, where, ": expected a list of ", of_what, ", got ",
            value.type_name());
  BEV_CHECK(!value.empty(), ErrorKind::kInput, where, ": an empty list of ", of_what);
  return value;
}

std::int32_t read_id(const Json& value, const IdRange& range, const std::string& where,
                     std::size_t column) {
  bool whole = value.is_number_integer();
  // Numbers above 2^63-1 are stored unsigned and are in no range.
  bool fits = whole && !(value.is_number_unsigned() && value.get<std::uint64_t>() >> 63 != 0);
  std::int64_t id = fits ? value.get<std::int64_t>() : -1;
  if (fits && ((id >= range.least && id < range.end) || id == range.besides)) {
    return static_cast<std::int32_t>(id);
  }
  // Only scalars are printed: a list could be long or nested.
  std::string text = value.is_structured() ? value.type_name() : value.dump(-1, ' ', true);
  BEV_CHECK(whole, ErrorKind::kInput, where, " column ", column, ": ", quote(text, 40),
            " is not a whole number");
  std::string besides;
  if (range.besides < range.least) besides = concat(" and not ", range.besides);
  BEV_FAIL(ErrorKind::kInput, where, " column ", column, ": ", text, " is outside [", range.least,
           ", ", range.end, ")", besides);
}

}  // namespace

IdRange id_range(std::int64_t vocab_size) {
  constexpr std::int64_t kMost = std::int64_t{1} << 31;
  BEV_CHECK(vocab_size > 0 && vocab_size <= kMost, ErrorKind::kInternal, "token file: vocab size ",
            vocab_size);
  return {0, vocab_size, 0};
}

struct JsonPlace::Content {
  Json json;
};

JsonPlace JsonPlace::checked(std::string_view text, std::string where) {
  auto content = std::make_shared<const Content>(Content{Json::parse(text)});
  const Json* root = &content->json;
  return {std::move(content), root, std::move(where)};
}

JsonPlace JsonPlace::read(const std::string& path) {
  return checked(read_json_object(path, kMaxDepth), path);
}

JsonPlace JsonPlace::parse(std::string_view text, const std::string& where) {
  check_json(text, where, kMaxDepth);
  return checked(text, where);
}

bool JsonPlace::is_object() const { return json_of(value_).is_object(); }
const char* JsonPlace::type_name() const { return json_of(value_).type_name(); }

std::vector<std::string> JsonPlace::names() const {
  std::vector<std::string> names;
  for (const auto& [name, value] : json_of(value_).items()) names.push_back(name);
  return names;
}

bool JsonPlace::has(std::string_view name) const {
  const Json& object = json_of(value_);
  auto found = object.find(name);
  return found != object.end() && !found->is_null();
}

JsonPlace JsonPlace::member(std::string_view name) const {
  const Json& object = json_of(value_);
  auto found = object.find(name);
  BEV_CHECK(found != object.end(), ErrorKind::kInput, where_, ": no '", name, "'");
  return {file_, &*found, concat(where_, ": ", name)};
}

std::vector<JsonPlace> JsonPlace::entries(const char* of_what) const {
  std::vector<JsonPlace> entries;
  for (const Json& entry : list(json_of(value_), where_, of_what)) {
    entries.push_back({file_, &entry, concat(where_, " entry ", entries.size())});
  }
  return entries;
}

std::vector<TokenRow> JsonPlace::rows(const IdRange& range) const {
  std::vector<TokenRow> rows;
  for (const Json& source : list(json_of(value_), where_, "rows")) {
    std::string here = concat(where_, " row ", rows.size());
    TokenRow& row = rows.emplace_back();
    row.reserve(source.size());
    for (const Json& id : list(source, here, "ids")) {
      row.push_back(read_id(id, range, here, row.size()));
    }
  }
  return rows;
}

TokenRow JsonPlace::ids(const IdRange& range) const {
  const Json& value = json_of(value_);
  BEV_CHECK(value.is_array(), ErrorKind::kInput, where_, ": expected a list of ids, got ",
            value.type_name());
  TokenRow row;
  row.reserve(value.size());
  for (const Json& id : value) row.push_back(read_id(id, range, where_, row.size()));
  return row;
}

bool JsonPlace::is_list() const { return json_of(value_).is_array(); }

namespace {
double read_number(const Json& value, const NumberRule& rule, const std::string& where) {
  if (value.is_null() && rule.nulls) return std::numeric_limits<double>::quiet_NaN();
  if (value.is_boolean() && rule.truths) return value.get<bool>() ? 1 : 0;
  BEV_CHECK(value.is_number(), ErrorKind::kInput, where, ": expected a number, got ",
            value.type_name());
  return value.get<double>();
}
}  // namespace

std::vector<double> JsonPlace::numbers(const NumberRule& rule) const {
  const Json& value = json_of(value_);
  BEV_CHECK(value.is_array(), ErrorKind::kInput, where_, ": expected a list of numbers, got ",
            value.type_name());
  std::vector<double> out;
  out.reserve(value.size());
  for (const Json& entry : value) {
    out.push_back(read_number(entry, rule, concat(where_, " entry ", out.size())));
  }
  return out;
}

double JsonPlace::number(const NumberRule& rule) const {
  return read_number(json_of(value_), rule, where_);
}

std::string JsonPlace::scalar_text() const {
  const Json& value = json_of(value_);
  BEV_CHECK(value.is_primitive() && !value.is_null(), ErrorKind::kInput, where_,
            ": expected one value, got ", value.type_name());
  return value.is_string() ? value.get<std::string>() : value.dump();
}

void check_same_shape(const std::vector<TokenRow>& rows, const std::vector<TokenRow>& input_ids,
                      const std::string& where) {
  BEV_CHECK(rows.size() == input_ids.size(), ErrorKind::kInput, where, ": ", rows.size(),
            " rows, input_ids has ", input_ids.size());
  for (std::size_t row = 0; row < rows.size(); ++row) {
    BEV_CHECK(rows[row].size() == input_ids[row].size(), ErrorKind::kInput, where, " row ", row,
              ": ", rows[row].size(), " entries, input_ids has ", input_ids[row].size());
  }
}

}  // namespace bev
