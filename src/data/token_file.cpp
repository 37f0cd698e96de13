#include "data/token_file.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json_check.h"

namespace bev {

namespace {
using Json = nlohmann::json;

constexpr int kMaxDepth = 16;  // keys that are not looked at may nest a little

const Json& member(const Json& object, const char* key, const std::string& path) {
  auto found = object.find(key);
  BEV_CHECK(found != object.end(), ErrorKind::kInput, path, ": no '", key, "'");
  return *found;
}

// A non-empty array; `where` names it.
const Json& list(const Json& value, const std::string& where, const char* of_what) {
  BEV_CHECK(value.is_array(), ErrorKind::kInput, where, ": expected a list of ", of_what, ", got ",
            value.type_name());
  BEV_CHECK(!value.empty(), ErrorKind::kInput, where, ": an empty list of ", of_what);
  return value;
}

// What the numbers of a row may be: [least, end), and one value besides.
struct Range {
  std::int64_t least;
  std::int64_t end;
  std::int64_t besides;
};

std::int32_t read_id(const Json& value, Range range, const std::string& where, std::size_t column) {
  bool whole = value.is_number_integer();
  // Above 2^63-1 the number is kept unsigned: not in any range.
  bool fits = whole && !(value.is_number_unsigned() && value.get<std::uint64_t>() >> 63 != 0);
  std::int64_t id = fits ? value.get<std::int64_t>() : -1;
  if (fits && ((id >= range.least && id < range.end) || id == range.besides)) {
    return static_cast<std::int32_t>(id);
  }
  // Only scalars are printed: a list could nest or be long.
  std::string text = value.is_structured() ? value.type_name() : value.dump(-1, ' ', true);
  BEV_CHECK(whole, ErrorKind::kInput, where, " column ", column, ": ", quote(text, 40),
            " is not a whole number");
  std::string besides;
  if (range.besides < range.least) besides = concat(" and not ", range.besides);
  BEV_FAIL(ErrorKind::kInput, where, " column ", column, ": ", text, " is outside [", range.least,
           ", ", range.end, ")", besides);
}

std::vector<TokenRow> read_rows(const Json& value, Range range, const std::string& where) {
  std::vector<TokenRow> rows;
  for (const Json& source : list(value, where, "rows")) {
    std::string here = concat(where, " row ", rows.size());
    TokenRow& row = rows.emplace_back();
    row.reserve(source.size());
    for (const Json& id : list(source, here, "ids")) {
      row.push_back(read_id(id, range, here, row.size()));
    }
  }
  return rows;
}

void check_same_shape(const std::vector<TokenRow>& rows, const std::vector<TokenRow>& expected,
                      const std::string& where) {
  BEV_CHECK(rows.size() == expected.size(), ErrorKind::kInput, where, ": ", rows.size(),
            " rows, input_ids has ", expected.size());
  for (std::size_t row = 0; row < rows.size(); ++row) {
    BEV_CHECK(rows[row].size() == expected[row].size(), ErrorKind::kInput, where, " row ", row,
              ": ", rows[row].size(), " entries, input_ids has ", expected[row].size());
  }
}

Range id_range(std::int64_t vocab_size) {
  constexpr std::int64_t kMost = std::int64_t{1} << 31;
  BEV_CHECK(vocab_size > 0 && vocab_size <= kMost, ErrorKind::kInternal, "token file: vocab size ",
            vocab_size);
  return {0, vocab_size, 0};
}
}  // namespace

TokenRows read_token_rows(const std::string& path, std::int64_t vocab_size) {
  Range range = id_range(vocab_size);
  const Json object = Json::parse(read_json_object(path, kMaxDepth));
  TokenRows rows;
  rows.input_ids = read_rows(member(object, "input_ids", path), range, path + ": input_ids");
  if (object.contains("labels") && !object["labels"].is_null()) {
    range.besides = kIgnoredLabel;
    rows.labels = read_rows(object["labels"], range, path + ": labels");
    check_same_shape(rows.labels, rows.input_ids, path + ": labels");
  } else {
    rows.labels = rows.input_ids;
  }
  if (object.contains("attention_mask") && !object["attention_mask"].is_null()) {
    std::string where = path + ": attention_mask (rows may be unequal: leave padding out)";
    check_same_shape(read_rows(object["attention_mask"], {1, 2, 1}, where), rows.input_ids, where);
  }
  return rows;
}

TokenBatches read_token_batches(const std::string& path, std::int64_t vocab_size) {
  Range range = id_range(vocab_size);
  const Json object = Json::parse(read_json_object(path, kMaxDepth));
  TokenBatches result;
  std::string where = path + ": batches";
  for (const Json& batch : list(member(object, "batches", path), where, "batches")) {
    std::string here = concat(where, " entry ", result.batches.size());
    result.batches.push_back(read_rows(batch, range, here));
  }
  return result;
}

}  // namespace bev
