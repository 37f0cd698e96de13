#include "tokenizer/normalizer.h"

#include <utility>
#include <vector>

#include "base/error.h"
#include "tokenizer/base64.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/charsmap.h"
#include "tokenizer/regex.h"
#include "tokenizer/unicode.h"

namespace bev {

namespace {

// Removes the characters of a trait.
void remove_characters(NormalizedText& text, std::uint16_t bits) {
  std::string out;
  out.reserve(text.text.size());
  for (std::size_t at = 0; at < text.text.size();) {
    DecodedPoint next = decode_point(text.text, at);
    if (has_trait(next.point, bits)) {
      if (at == 0) text.keeps_start = false;
    } else {
      out.append(text.text, at, next.bytes);
    }
    at += next.bytes;
  }
  text.text = std::move(out);
}

void make_lower(std::string& text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    DecodedPoint next = decode_point(text, at);
    append_lower(out, next.point);
    at += next.bytes;
  }
  text = std::move(out);
}

class UnicodeForm : public Normalizer {
 public:
  explicit UnicodeForm(NormalForm form) : form_(form) {}
  void apply(NormalizedText& text) const override { text.text = normal_form(text.text, form_); }

 private:
  NormalForm form_;
};

class Lowercase : public Normalizer {
 public:
  void apply(NormalizedText& text) const override { make_lower(text.text); }
};

class StripAccents : public Normalizer {
 public:
  void apply(NormalizedText& text) const override {
    remove_characters(text, trait::kCombiningMark);
  }
};

class Strip : public Normalizer {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}
  void apply(NormalizedText& text) const override {
    std::string_view rest = text.text;
    while (left_ && !rest.empty()) {
      DecodedPoint next = decode_point(rest, 0);
      if (!has_trait(next.point, trait::kSpace)) break;
      rest.remove_prefix(next.bytes);
      text.keeps_start = false;
    }
    while (right_ && !rest.empty()) {
      DecodedPoint last = decode_last_point(rest);
      if (!has_trait(last.point, trait::kSpace)) break;
      rest.remove_suffix(last.bytes);
    }
    text.text = std::string(rest);
  }

 private:
  bool left_, right_;
};

class Prepend : public Normalizer {
 public:
  explicit Prepend(std::string prefix) : prefix_(std::move(prefix)) {}
  void apply(NormalizedText& text) const override {
    if (!text.text.empty()) text.text.insert(0, prefix_);
  }

 private:
  std::string prefix_;
};

class Replace : public Normalizer {
 public:
  Replace(const PatternText& pattern, std::string content)
      : regex_(pattern.regex ? pattern.text : escape_regex(pattern.text), RegexDialect::kOniguruma),
        literal_(pattern.regex ? "" : pattern.text),
        content_(std::move(content)) {}
  void apply(NormalizedText& text) const override {
    if (text.text.empty()) return;
    std::string out;
    std::size_t done = 0;
    auto replace = [&](Match match) {
      // A character put in is the last one's that was taken out.
      bool single = match.end > 0 && match.end == point_bytes(text.text[0]);
      if (match.begin == 0 && (content_.empty() ? match.end > 0 : !single && match.end > 0)) {
        text.keeps_start = false;
      }
      out.append(text.text, done, match.begin - done).append(content_);
      done = match.end;
    };
    if (!literal_.empty()) {
      for (std::size_t at = 0; (at = text.text.find(literal_, at)) != std::string::npos;) {
        replace({at, at + literal_.size()});
        at += literal_.size();
      }
    } else {
      Regex::Matches matches(regex_, text.text);
      while (std::optional<Match> match = matches.next()) replace(*match);
    }
    out.append(text.text, done);
    text.text = std::move(out);
  }

 private:
  Regex regex_;
  std::string literal_;
  std::string content_;
};

class Nmt : public Normalizer {
 public:
  void apply(NormalizedText& text) const override {
    std::string out;
    for (std::size_t at = 0; at < text.text.size();) {
      DecodedPoint next = decode_point(text.text, at);
      CodePoint c = next.point;
      bool removed = (c >= 0x1 && c <= 0x8) || c == 0xb || (c >= 0xe && c <= 0x1f) || c == 0x7f ||
                     c == 0x8f || c == 0x9f;
      bool space = c == 0x9 || c == 0xa || c == 0xc || c == 0xd || c == 0x1680 ||
                   (c >= 0x200b && c <= 0x200f) || c == 0x2028 || c == 0x2029 || c == 0x2581 ||
                   c == 0xfeff || c == 0xfffd;
      if (removed && at == 0) text.keeps_start = false;
      if (space) {
        out.push_back(' ');
      } else if (!removed) {
        out.append(text.text, at, next.bytes);
      }
      at += next.bytes;
    }
    text.text = std::move(out);
  }
};

class ByteLevelText : public Normalizer {
 public:
  void apply(NormalizedText& text) const override { text.text = to_byte_level(text.text); }
};

// The reference looks a whole grapheme up when it is short, and takes the shortest rule that it
// starts with for all of it; otherwise character by character.
class Precompiled : public Normalizer {
 public:
  explicit Precompiled(Charsmap map) : map_(std::move(map)) {}
  void apply(NormalizedText& text) const override {
    constexpr std::size_t kShort = 6;
    std::string out;
    std::string_view rest = text.text;
    while (!rest.empty()) {
      std::string_view grapheme = rest.substr(0, first_grapheme(rest));
      rest.remove_prefix(grapheme.size());
      if (grapheme.size() < kShort && append_rule(out, grapheme)) continue;
      for (std::size_t at = 0; at < grapheme.size();) {
        std::string_view part = grapheme.substr(at, point_bytes(grapheme[at]));
        if (!append_rule(out, part)) out.append(part);
        at += part.size();
      }
    }
    text.text = std::move(out);
  }

 private:
  bool append_rule(std::string& out, std::string_view part) const {
    std::optional<Charsmap::Rule> rule = map_.shortest(part);
    if (!rule) return false;
    out.append(rule->replacement);
    return true;
  }

  Charsmap map_;
};

class BertText : public Normalizer {
 public:
  bool clean = true, chinese = true, accents = true, lower = true;

  void apply(NormalizedText& text) const override {
    if (clean) clean_up(text);
    if (chinese) space_chinese(text.text);
    if (accents) {
      text.text = normal_form(text.text, NormalForm::kNfd);
      remove_characters(text, trait::kBertAccent);
    }
    if (lower) make_lower(text.text);
  }

 private:
  static void clean_up(NormalizedText& text) {
    std::string out;
    out.reserve(text.text.size());
    for (std::size_t at = 0; at < text.text.size();) {
      DecodedPoint next = decode_point(text.text, at);
      bool removed =
          next.point == 0 || next.point == 0xfffd || has_trait(next.point, trait::kBertControl);
      if (removed) {
        if (at == 0) text.keeps_start = false;
      } else if (has_trait(next.point, trait::kSpace)) {
        out.push_back(' ');
      } else {
        out.append(text.text, at, next.bytes);
      }
      at += next.bytes;
    }
    text.text = std::move(out);
  }

  static bool is_chinese(CodePoint c) {
    return (c >= 0x4e00 && c <= 0x9fff) || (c >= 0x3400 && c <= 0x4dbf) ||
           (c >= 0x20000 && c <= 0x2a6df) || (c >= 0x2a700 && c <= 0x2b73f) ||
           (c >= 0x2b740 && c <= 0x2b81f) || (c >= 0x2b920 && c <= 0x2ceaf) ||
           (c >= 0xf900 && c <= 0xfaff) || (c >= 0x2f800 && c <= 0x2fa1f);
  }

  static void space_chinese(std::string& text) {
    std::string out;
    out.reserve(text.size());
    for (std::size_t at = 0; at < text.size();) {
      DecodedPoint next = decode_point(text, at);
      bool spaced = next.point >= 0x3400 && is_chinese(next.point);
      if (spaced) out.push_back(' ');
      out.append(text, at, next.bytes);
      if (spaced) out.push_back(' ');
      at += next.bytes;
    }
    text = std::move(out);
  }
};

class NormalizerSequence : public Normalizer {
 public:
  std::vector<std::unique_ptr<Normalizer>> steps;
  void apply(NormalizedText& text) const override {
    for (const auto& step : steps) step->apply(text);
  }
};

std::unique_ptr<Normalizer> make_bert(const JsonValue& json) {
  auto bert = std::make_unique<BertText>();
  bert->clean = json.need_flag("clean_text");
  bert->chinese = json.need_flag("handle_chinese_chars");
  bert->lower = json.need_flag("lowercase");
  bert->accents = json.flag("strip_accents").value_or(bert->lower);
  return bert;
}

}  // namespace

std::unique_ptr<Normalizer> make_normalizer(const JsonValue& json) {
  if (json.is_null()) return nullptr;
  const std::string type = json.need_text("type");
  if (type == "Sequence") {
    auto sequence = std::make_unique<NormalizerSequence>();
    for (const JsonValue& step : json.need_array("normalizers")) {
      if (auto made = make_normalizer(step)) sequence->steps.push_back(std::move(made));
    }
    return sequence;
  }
  if (type == "NFC") return std::make_unique<UnicodeForm>(NormalForm::kNfc);
  if (type == "NFD") return std::make_unique<UnicodeForm>(NormalForm::kNfd);
  if (type == "NFKC") return std::make_unique<UnicodeForm>(NormalForm::kNfkc);
  if (type == "NFKD") return std::make_unique<UnicodeForm>(NormalForm::kNfkd);
  if (type == "Lowercase") return std::make_unique<Lowercase>();
  if (type == "StripAccents") return std::make_unique<StripAccents>();
  if (type == "Nmt") return std::make_unique<Nmt>();
  if (type == "ByteLevel") return std::make_unique<ByteLevelText>();
  if (type == "BertNormalizer") return make_bert(json);
  if (type == "Prepend") return std::make_unique<Prepend>(json.need_text("prepend"));
  if (type == "Strip") {
    return std::make_unique<Strip>(json.need_flag("strip_left"), json.need_flag("strip_right"));
  }
  if (type == "Replace") {
    return std::make_unique<Replace>(read_pattern(json), json.need_text("content"));
  }
  if (type == "Precompiled") {
    std::string map = decode_base64(json.text("precompiled_charsmap").value_or(""), json.source());
    return std::make_unique<Precompiled>(map.empty() ? Charsmap() : Charsmap(map, json.source()));
  }
  BEV_FAIL(ErrorKind::kInput, json.source(), ": the normalizer \"", type, "\" is not known");
}

}  // namespace bev
