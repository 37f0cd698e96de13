#include "chat/jinja/text_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "base/json_check.h"
#include "chat/jinja/operators.h"
#include "chat/jinja/value_text.h"
#include "tokenizer/text/utf8.h"

namespace bev::jinja {

namespace {

constexpr std::int64_t kMostWidth = 4096;

struct Conversion {
  bool left = false, zero = false, plus = false, blank = false;
  std::int64_t width = 0;
  std::int64_t precision = -1;
  char letter = 0;
};

// Padding of a text of `size` characters.
std::string padding(std::size_t size, const Conversion& conversion, char with) {
  auto width = static_cast<std::size_t>(conversion.width);
  return std::string(size < width ? width - size : 0, with);
}

std::string padded_number(std::string text, const Conversion& conversion) {
  bool zeros = conversion.zero && !conversion.left;
  std::string pad = padding(text.size(), conversion, zeros ? '0' : ' ');
  if (conversion.left) return text + pad;
  if (!zeros) return pad + text;
  std::size_t sign =
      text.starts_with('-') || text.starts_with('+') || text.starts_with(' ') ? 1 : 0;
  return text.insert(sign, pad);
}

std::string with_sign(std::string text, bool negative, const Conversion& conversion) {
  return concat(negative ? "-" : conversion.plus ? "+" : conversion.blank ? " " : "", text);
}

std::string convert_integer(const Value& value, const Conversion& conversion) {
  double real = std::trunc(value.number());
  BEV_CHECK(value.is_number() && (value.integer() || std::abs(real) < 0x1p63), ErrorKind::kInput,
            "%", conversion.letter, " needs a number, not a ", value.type_name());
  BEV_CHECK(conversion.letter == 'd' || conversion.letter == 'i' || value.integer(),
            ErrorKind::kInput, "%", conversion.letter, " needs an int, not a float");
  std::int64_t whole = value.integer() ? *value.integer() : static_cast<std::int64_t>(real);
  std::uint64_t size =
      whole < 0 ? ~static_cast<std::uint64_t>(whole) + 1 : static_cast<std::uint64_t>(whole);
  std::string digits = conversion.letter == 'x'   ? fmt::format("{:x}", size)
                       : conversion.letter == 'X' ? fmt::format("{:X}", size)
                       : conversion.letter == 'o' ? fmt::format("{:o}", size)
                                                  : fmt::format("{}", size);
  auto least =
      static_cast<std::size_t>(std::clamp<std::int64_t>(conversion.precision, 0, kMostWidth));
  if (digits.size() < least) digits.insert(0, least - digits.size(), '0');
  return padded_number(with_sign(digits, whole < 0, conversion), conversion);
}

std::string convert_real(const Value& value, const Conversion& conversion) {
  BEV_CHECK(value.is_number(), ErrorKind::kInput, "%", conversion.letter, " needs a number, not a ",
            value.type_name());
  double real = value.number(), size = std::abs(real);
  int precision = conversion.precision < 0 ? 6 : static_cast<int>(conversion.precision);
  std::string digits = conversion.letter == 'e'   ? fmt::format("{:.{}e}", size, precision)
                       : conversion.letter == 'g' ? fmt::format("{:.{}g}", size, precision)
                                                  : fmt::format("{:.{}f}", size, precision);
  return padded_number(with_sign(digits, std::signbit(real), conversion), conversion);
}

TracedText convert_text(const Value& value, const Conversion& conversion) {
  TracedText text = conversion.letter == 'r' ? traced_repr(value) : traced_str(value);
  if (conversion.precision >= 0) {
    std::size_t end = 0;
    for (std::int64_t i = 0; i < conversion.precision && end < text.size(); ++i) {
      end += point_bytes(text.text()[end]);
    }
    text = text.substr(0, end);
  }
  TracedText pad = padding(count_points(text.text()), conversion, ' ');
  return conversion.left ? text.append(pad) : pad.append(text);
}

class PercentFormat {
 public:
  PercentFormat(const TracedText& format, const Value& values)
      : traced_(format), format_(format.text()), values_(values) {
    const Sequence* sequence = values.sequence();
    is_tuple_ = sequence && sequence->kind == SequenceKind::kTuple;
  }

  TracedText run() {
    TracedText out;
    while (at_ < format_.size()) {
      std::size_t next = std::min(format_.find('%', at_), format_.size());
      out.append(traced_.substr(at_, next - at_));
      at_ = next + 1;
      if (next < format_.size()) out.append(conversion());
    }
    bool all = is_tuple_ ? next_ == values_.sequence()->items.size()
                         : next_ > 0 || values_.is_dict() || values_.is_sequence();
    BEV_CHECK(all, ErrorKind::kInput, "%: not all values are used by the text");
    return out;
  }

 private:
  char peek() const { return at_ < format_.size() ? format_[at_] : '\0'; }

  Value next_value() {
    std::size_t at = next_++;
    if (is_tuple_) {
      const List& items = values_.sequence()->items;
      BEV_CHECK(at < items.size(), ErrorKind::kInput,
                "%: there are not enough values for the text");
      return items[at];
    }
    BEV_CHECK(at == 0, ErrorKind::kInput, "%: there are not enough values for the text");
    return values_;
  }

  std::int64_t number() {
    if (peek() == '*') {
      ++at_;
      return next_value().integer().value_or(0);
    }
    std::int64_t value = 0;
    while (peek() >= '0' && peek() <= '9')
      value = std::min(value * 10 + (format_[at_++] - '0'), kMostWidth + 1);
    return value;
  }

  TracedText conversion() {
    std::optional<Value> named;
    if (peek() == '(') {
      std::size_t end = format_.find(')', at_);
      BEV_CHECK(end != format_.npos && values_.is_dict(), ErrorKind::kInput,
                "%(name) needs a ')' and a dict");
      named = item_of(values_, format_.substr(at_ + 1, end - at_ - 1));
      need_defined(*named);
      at_ = end + 1;
    }
    Conversion wanted;
    for (; std::string_view("-0+ #").find(peek()) != std::string_view::npos && peek(); ++at_) {
      wanted.left |= peek() == '-';
      wanted.zero |= peek() == '0';
      wanted.plus |= peek() == '+';
      wanted.blank |= peek() == ' ';
    }
    wanted.width = number();
    if (peek() == '.') {
      ++at_;
      wanted.precision = number();
    }
    BEV_CHECK(wanted.width <= kMostWidth && wanted.precision <= kMostWidth, ErrorKind::kInput,
              "%: a width over ", kMostWidth);
    BEV_CHECK(at_ < format_.size(), ErrorKind::kInput, "%: the text ends inside a conversion");
    wanted.letter = format_[at_++];
    if (wanted.letter == '%') return "%";
    Value value = named ? *named : next_value();
    if (wanted.letter == 's' || wanted.letter == 'r') return convert_text(value, wanted);
    if (std::string_view("diuxXo").find(wanted.letter) != std::string_view::npos) {
      return convert_integer(value, wanted);
    }
    BEV_CHECK(std::string_view("feg").find(wanted.letter) != std::string_view::npos,
              ErrorKind::kInput, "the conversion %", wanted.letter, " is not supported");
    return convert_real(value, wanted);
  }

  const TracedText& traced_;
  std::string_view format_;
  const Value& values_;
  bool is_tuple_ = false;
  std::size_t at_ = 0, next_ = 0;
};

Value field(std::string_view name, std::size_t& next, const Arguments& arguments) {
  std::size_t at = name.empty() ? next++ : 0;
  bool numbered = name.empty() || (name[0] >= '0' && name[0] <= '9');
  if (!name.empty() && numbered) {
    auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), at);
    numbered = error == std::errc() && end == name.data() + name.size();
  }
  if (numbered) {
    BEV_CHECK(at < arguments.positional.size(), ErrorKind::kInput, "format() has no value number ",
              at);
    return arguments.positional[at];
  }
  auto found = std::ranges::find(arguments.named, name, [](const auto& one) { return one.first; });
  BEV_CHECK(found != arguments.named.end(), ErrorKind::kInput, "format() has no value ",
            quote(name), "; fields are names or numbers, without specifications");
  return found->second;
}

}  // namespace

TracedText percent_format(const TracedText& format, const Value& values) {
  return PercentFormat(format, values).run();
}

TracedText brace_format(const TracedText& format, const Arguments& arguments) {
  const std::string& text = format.text();
  TracedText out;
  std::size_t next = 0;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t brace = std::min(text.find_first_of("{}", at), text.size());
    out.append(format.substr(at, brace - at));
    if (brace == text.size()) break;
    if (brace + 1 < text.size() && text[brace + 1] == text[brace]) {
      out.append(format.substr(brace, 1));
      at = brace + 2;
      continue;
    }
    std::size_t end = text.find('}', brace);
    BEV_CHECK(text[brace] == '{' && end != text.npos, ErrorKind::kInput, "format(): a '",
              text[brace], "' stands alone");
    std::string_view name = std::string_view(text).substr(brace + 1, end - brace - 1);
    out.append(traced_str(field(name, next, arguments)));
    at = end + 1;
  }
  return out;
}

}  // namespace bev::jinja
