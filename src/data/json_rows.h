// Values of a JSON file that know their place: every mistake is an Error(kInput) that begins with
// it, as in "F.json: batches entry 1: labels row 0 column 3: ...". Rows and columns are counted
// from 0.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace bev {

using TokenRow = std::vector<std::int32_t>;

// What the numbers of rows may be: [least, end), and one value besides.
struct IdRange {
  std::int64_t least = 0, end = 0, besides = 0;
};
// The range of token ids.
IdRange id_range(std::int64_t vocab_size);

// Keeps the whole file.
class JsonPlace {
 public:
  // The file's object.
  static JsonPlace read(const std::string& path);

  const std::string& where() const { return where_; }
  bool is_object() const;
  const char* type_name() const;
  // Names of an object's members.
  std::vector<std::string> names() const;
  // Whether there is such a member that is not null.
  bool has(std::string_view name) const;
  JsonPlace member(std::string_view name) const;
  // Entries of a list that is not empty.
  std::vector<JsonPlace> entries(const char* of_what) const;
  // A list of rows; neither it nor a row is empty.
  std::vector<TokenRow> rows(const IdRange& range) const;

 private:
  struct Content;
  JsonPlace(std::shared_ptr<const Content> file, const void* value, std::string where)
      : file_(std::move(file)), value_(value), where_(std::move(where)) {}

  std::shared_ptr<const Content> file_;
  const void* value_;
  std::string where_;
};

// Error(kInput) unless `rows`, of the place `where`, are as many as input_ids and as long.
void check_same_shape(const std::vector<TokenRow>& rows, const std::vector<TokenRow>& input_ids,
                      const std::string& where);

}  // namespace bev
