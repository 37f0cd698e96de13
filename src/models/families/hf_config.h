// Hugging Face config.json: typed access with errors that name file, key and value, and
// construction for export. A key whose value is null counts as absent.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace bev {

class HfConfig {
 public:
  HfConfig();  // an empty object, for export
  // Throws Error(kInput) unless `text` is a JSON object; `source` names the file in messages.
  // Infinity and NaN, as Python writes them, are values of no type; see infinite().
  static HfConfig parse(std::string_view text, std::string source = "config.json");
  HfConfig(const HfConfig& other);
  HfConfig(HfConfig&& other) noexcept;
  HfConfig& operator=(HfConfig other) noexcept;
  ~HfConfig();

  const std::string& source() const;
  bool empty() const;
  bool has(std::string_view key) const;       // present and not null
  bool listed(std::string_view key) const;    // present, possibly null
  bool truthy(std::string_view key) const;    // as in Python: not missing, null, false, 0 or empty
  bool infinite(std::string_view key) const;  // Python's Infinity
  // All of these throw Error(kInput) for a value of the wrong type or range. Without a default, a
  // missing key is an error too.
  std::int64_t positive_integer(std::string_view key) const;  // at most 2^28
  std::int64_t positive_integer(std::string_view key, std::int64_t missing) const;
  std::int64_t count(std::string_view key, std::int64_t missing) const;  // an integer >= 0
  std::int64_t integer(std::string_view key, std::int64_t missing) const;
  double positive_number(std::string_view key) const;
  double positive_number(std::string_view key, double missing) const;
  bool boolean(std::string_view key, bool missing) const;
  std::string text(std::string_view key) const;
  std::string text(std::string_view key, std::string_view missing) const;
  double magnitude(std::string_view key, double missing) const;  // a number >= 0
  std::vector<double> positive_numbers(std::string_view key) const;
  // Numbers >= 0, which may be infinite as transformers 4 or 5 writes it; empty when missing.
  std::vector<double> limits(std::string_view key) const;
  bool is(std::string_view key, std::string_view value) const;  // that text
  std::vector<std::string> texts(std::string_view key) const;
  std::vector<std::int64_t> counts(std::string_view key) const;  // empty when missing
  std::optional<HfConfig> object(std::string_view key) const;    // nullopt when missing

  // Throws Error(kInput): "config.json: KEY is VALUE; WHY". Long values are shortened.
  [[noreturn]] void reject(std::string_view key, std::string_view why) const;

  void set(std::string_view key, bool value);
  void set(std::string_view key, std::int64_t value);
  void set(std::string_view key, double value);
  void set(std::string_view key, std::string_view value);
  void set(std::string_view key, const char* value) { set(key, std::string_view(value)); }
  void set(std::string_view key, const std::vector<std::int64_t>& value);
  void set(std::string_view key, const std::vector<double>& value);
  void set(std::string_view key, const std::vector<std::string>& value);
  void set(std::string_view key, const HfConfig& value);
  void set_null(std::string_view key);

  // Format of Hugging Face: sorted keys, indent 2, trailing newline.
  std::string dump() const;

 private:
  struct Impl;

  std::unique_ptr<Impl> impl_;
};

}  // namespace bev
