#include "base/json_check.h"

#include <nlohmann/json.hpp>
#include <unordered_set>

#include "base/error.h"
#include "base/file.h"

namespace bev {

namespace {
std::string printable(std::string_view text, std::size_t most) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (unsigned char byte : text.substr(0, most)) {
    if (byte >= 0x20 && byte < 0x7f) {
      out.push_back(static_cast<char>(byte));
    } else {
      out.append("\\x").push_back(kDigits[byte >> 4]);
      out.push_back(kDigits[byte & 15]);
    }
  }
  if (text.size() > most) out.append("...");
  return out;
}

// SAX handler that keeps only the keys of the currently open objects.
class Checker : public nlohmann::json_sax<nlohmann::json> {
 public:
  Checker(std::string_view source, int max_depth)
      : source_(source), max_depth_(static_cast<std::size_t>(max_depth)) {}

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override { return open(); }
  bool end_object() override { return close(); }
  bool start_array(std::size_t) override { return open(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    BEV_CHECK(keys_.back().insert(name).second, ErrorKind::kInput, source_, ": the key ",
              quote(name), " appears twice");
    return true;
  }
  bool parse_error(std::size_t, const std::string&,
                   const nlohmann::json::exception& error) override {
    std::string_view text = error.what();  // "[json.exception.kind.101] parse error at line ..."
    if (auto end = text.find("] "); end != text.npos) text.remove_prefix(end + 2);
    BEV_FAIL(ErrorKind::kInput, source_, ": not valid JSON: ", printable(text, 300));
  }

 private:
  bool open() {
    BEV_CHECK(keys_.size() < max_depth_, ErrorKind::kInput, source_, ": JSON nested deeper than ",
              max_depth_, " levels");
    keys_.emplace_back();
    return true;
  }
  bool close() {
    keys_.pop_back();
    return true;
  }

  std::string_view source_;
  std::size_t max_depth_;
  std::vector<std::unordered_set<std::string>> keys_;
};
}  // namespace

void check_json(std::string_view text, std::string_view source, int max_depth) {
  // nlohmann's parser takes a zero byte for the end of input and would ignore the rest.
  BEV_CHECK(text.find('\0') == text.npos, ErrorKind::kInput, source,
            ": not valid JSON: a zero byte at ", text.find('\0'));
  Checker checker(source, max_depth);
  nlohmann::json::sax_parse(text.begin(), text.end(), &checker);
}

std::string read_json_object(const std::string& path, int max_depth) {
  std::string text = read_file(path);
  check_json(text, path, max_depth);
  // Skips white space and a byte order mark.
  bool object = text[text.find_first_not_of("\xEF\xBB\xBF \t\r\n")] == '{';
  BEV_CHECK(object, ErrorKind::kInput, path, ": not a JSON object but ",
            nlohmann::json::parse(text).type_name());
  return text;
}

namespace {
// The number of Python at the beginning of the text; "" if there is none.
std::string_view python_number(std::string_view text) {
  for (std::string_view number : {"Infinity", "-Infinity", "NaN"}) {
    if (text.starts_with(number)) return number;
  }
  return {};
}
}  // namespace

std::string mark_python_numbers(std::string_view json) {
  std::string out;
  bool in_string = false;
  for (std::size_t at = 0; at < json.size(); ++at) {
    std::string_view number = in_string ? "" : python_number(json.substr(at));
    if (!number.empty()) {
      out.append("\"\\u0001").append(number).push_back('"');
      at += number.size() - 1;
      continue;
    }
    out.push_back(json[at]);
    if (json[at] == '"') in_string = !in_string;
    if (in_string && json[at] == '\\' && at + 1 < json.size()) out.push_back(json[++at]);
  }
  return out;
}

std::string unmark_python_numbers(std::string json) {
  constexpr std::string_view kMark = "\"\\u0001";
  std::size_t at = 0;
  while ((at = json.find(kMark, at)) != json.npos) {
    std::string_view number = python_number(std::string_view(json).substr(at + kMark.size()));
    std::size_t end = at + kMark.size() + number.size();
    if (!number.empty() && json.substr(end, 1) == "\"") {
      json.replace(at, end + 1 - at, std::string(number));
    }
    at += 1;
  }
  return json;
}

std::string quote(std::string_view text, std::size_t most) {
  return concat("'", printable(text, most), "'");
}

}  // namespace bev
