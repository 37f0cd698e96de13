#include "models/layer_list.h"

#include <charconv>
#include <cstdint>
#include <vector>

#include "base/text.h"

namespace bev {

namespace {

constexpr std::size_t kMaxItems = 1 << 13;  // above any number of layers

// Parser of Megatron's Python lists, "([0]*3+[1]*58)": concatenated and repeated lists in nested
// brackets.
class ListExpression {
 public:
  explicit ListExpression(std::string_view text) : text_(text) {}

  // Returns the items; `ok` is false if the text is no such list.
  std::vector<std::int64_t> read(bool& ok) {
    std::vector<std::int64_t> items = sum(0);
    ok = !failed_ && at_ == text_.size();
    return items;
  }

 private:
  static constexpr int kDepth = 16;

  char next() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool take(char wanted) {
    if (next() != wanted) return false;
    ++at_;
    return true;
  }
  std::int64_t number() {
    next();
    std::int64_t value = 0;
    const char* begin = text_.data() + at_;
    auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value);
    failed_ |= error != std::errc() || value < 0;
    at_ += static_cast<std::size_t>(end - begin);
    return value;
  }
  std::vector<std::int64_t> sum(int depth) {
    std::vector<std::int64_t> items = product(depth);
    while (!failed_ && take('+')) {
      std::vector<std::int64_t> more = product(depth);
      items.insert(items.end(), more.begin(), more.end());
      failed_ |= items.size() > kMaxItems;
    }
    next();
    return items;
  }
  std::vector<std::int64_t> product(int depth) {
    std::vector<std::int64_t> items = list(depth);
    while (!failed_ && take('*')) {
      std::int64_t times = number();
      std::vector<std::int64_t> once = std::move(items);
      items.clear();
      failed_ |= times > static_cast<std::int64_t>(kMaxItems);
      for (std::int64_t i = 0; !failed_ && i < times; ++i) {
        items.insert(items.end(), once.begin(), once.end());
        failed_ |= items.size() > kMaxItems;
      }
    }
    return items;
  }
  std::vector<std::int64_t> list(int depth) {
    if (depth < kDepth && take('(')) {
      std::vector<std::int64_t> inner = sum(depth + 1);
      failed_ |= !take(')');
      return inner;
    }
    std::vector<std::int64_t> items;
    failed_ |= !take('[');
    while (!failed_ && !take(']')) {
      items.push_back(number());
      failed_ |= next() != ']' && !take(',');
    }
    return items;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  bool failed_ = false;
};

}  // namespace

std::string read_layer_list(std::string_view text, std::string& problem) {
  if (text.find_first_of("*+([") == std::string_view::npos) return std::string(text);
  bool ok = false;
  std::vector<std::string> items;
  for (std::int64_t item : ListExpression(text).read(ok)) items.push_back(concat(item));
  if (!ok) {
    problem = concat("'", text, "' is neither a number nor a list like ([0]*3+[1]*58)");
  }
  return join(items, ",");
}

}  // namespace bev
