// JSON values that know their location: every mistake is an Error(kInput) that begins with it, as
// in "F.json: batches entry 1: labels row 0 column 3: ...". Rows and columns are counted from 0.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace bev {

using TokenRow = std::vector<std::int32_t>;

// Valid values of a row: [least, end) and `besides`.
struct IdRange {
  std::int64_t least = 0, end = 0, besides = 0;
};
// Range of token ids.
IdRange id_range(std::int64_t vocab_size);

// What a list of numbers may hold besides.
struct NumberRule {
  bool nulls = false;   // read as NaN
  bool truths = false;  // false and true, read as 0 and 1
};

// A value in a JSON file; keeps the whole file alive.
class JsonPlace {
 public:
  // Root object of a file.
  static JsonPlace read(const std::string& path);
  // The same of text; `where` begins its messages.
  static JsonPlace parse(std::string_view text, const std::string& where);

  const std::string& where() const { return where_; }
  bool is_object() const;
  const char* type_name() const;
  // Keys of an object.
  std::vector<std::string> names() const;
  // True if the member exists and is not null.
  bool has(std::string_view name) const;
  JsonPlace member(std::string_view name) const;
  // Elements of a non-empty list.
  std::vector<JsonPlace> entries(const char* of_what) const;
  // A non-empty list of non-empty rows.
  std::vector<TokenRow> rows(const IdRange& range) const;
  // A list of ids, perhaps empty.
  TokenRow ids(const IdRange& range) const;
  bool is_list() const;
  // A list of numbers, perhaps empty.
  std::vector<double> numbers(const NumberRule& rule = {}) const;
  double number(const NumberRule& rule = {}) const;
  // A text, number or truth value as a flag would give it.
  std::string scalar_text() const;

 private:
  struct Content;
  static JsonPlace checked(std::string_view text, std::string where);
  JsonPlace(std::shared_ptr<const Content> file, const void* value, std::string where)
      : file_(std::move(file)), value_(value), where_(std::move(where)) {}

  std::shared_ptr<const Content> file_;
  const void* value_;
  std::string where_;
};

// Throws Error(kInput) unless `rows`, located at `where`, have the shape of input_ids.
void check_same_shape(const std::vector<TokenRow>& rows, const std::vector<TokenRow>& input_ids,
                      const std::string& where);

}  // namespace bev
