#include "tokenizer/pipeline/normalizer.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.h"
#include "tokenizer/pipeline/byte_level.h"
#include "tokenizer/pipeline/charsmap.h"
#include "tokenizer/text/base64.h"
#include "tokenizer/text/regex.h"
#include "tokenizer/text/unicode.h"

namespace bev {

NormalizedText::NormalizedText(std::string original, std::size_t first_character_bytes)
    : text(std::move(original)), origin_bytes(first_character_bytes) {
  constexpr std::size_t kMostTimes = 64, kAlways = 16 << 20;
  most_bytes = kAlways + kMostTimes * text.size();
}

void NormalizedText::check_growth(std::size_t bytes) const {
  BEV_CHECK(bytes <= most_bytes, ErrorKind::kInput,
            "the tokenizer's normalizer makes a text longer than ", most_bytes,
            " bytes; its steps feed each other");
}

void NormalizedText::become(std::string changed, std::size_t changed_origin_bytes) {
  check_growth(changed.size());
  text = std::move(changed);
  origin_bytes = changed_origin_bytes;
}

namespace {

// Rewrites the text by character: change(point, bytes, out) appends the replacement.
template <class Change>
void change_characters(NormalizedText& text, Change change) {
  std::string out;
  out.reserve(text.text.size());
  std::size_t origin = 0;
  for (std::size_t at = 0; at < text.text.size();) {
    DecodedPoint next = decode_point(text.text, at);
    change(next.point, std::string_view(text.text).substr(at, next.bytes), out);
    at += next.bytes;
    if (at <= text.origin_bytes) origin = out.size();
  }
  text.become(std::move(out), origin);
}

void remove_characters(NormalizedText& text, std::uint16_t bits) {
  change_characters(text, [&](CodePoint point, std::string_view bytes, std::string& out) {
    if (!has_trait(point, bits)) out.append(bytes);
  });
}

void make_lower(NormalizedText& text) {
  change_characters(
      text, [](CodePoint point, std::string_view, std::string& out) { append_lower(out, point); });
}

void apply_form(NormalizedText& text, NormalForm form) {
  std::size_t origin =
      normal_form(std::string_view(text.text).substr(0, text.origin_bytes), form).size();
  text.become(normal_form(text.text, form), origin);
}

class UnicodeForm : public Normalizer {
 public:
  explicit UnicodeForm(NormalForm form) : form_(form) {}
  void apply(NormalizedText& text) const override { apply_form(text, form_); }

 private:
  NormalForm form_;
};

class Lowercase : public Normalizer {
 public:
  void apply(NormalizedText& text) const override { make_lower(text); }
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
    }
    while (right_ && !rest.empty()) {
      DecodedPoint last = decode_last_point(rest);
      if (!has_trait(last.point, trait::kSpace)) break;
      rest.remove_suffix(last.bytes);
    }
    auto stripped = static_cast<std::size_t>(rest.data() - text.text.data());
    text.become(std::string(rest), text.origin_bytes - std::min(stripped, text.origin_bytes));
  }

 private:
  bool left_, right_;
};

class Prepend : public Normalizer {
 public:
  explicit Prepend(std::string prefix) : prefix_(std::move(prefix)) {}
  void apply(NormalizedText& text) const override {
    if (text.text.empty()) return;
    text.become(prefix_ + text.text,
                text.origin_bytes > 0 ? text.origin_bytes + prefix_.size() : 0);
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
    std::size_t done = 0, origin = 0;
    // Copies the text up to `end` unchanged.
    auto copy_to = [&](std::size_t end) {
      if (done < text.origin_bytes) {
        origin = out.size() + std::min(end, text.origin_bytes) - done;
      }
      out.append(text.text, done, end - done);
    };
    auto replace = [&](Match match) {
      copy_to(match.begin);
      out.append(content_);
      text.check_growth(out.size());
      // The replacement is attributed to the last character of the match.
      if (match.end <= text.origin_bytes) origin = out.size();
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
    copy_to(text.text.size());
    text.become(std::move(out), origin);
  }

 private:
  Regex regex_;
  std::string literal_;
  std::string content_;
};

class Nmt : public Normalizer {
 public:
  void apply(NormalizedText& text) const override {
    change_characters(text, [](CodePoint c, std::string_view bytes, std::string& out) {
      bool removed = (c >= 0x1 && c <= 0x8) || c == 0xb || (c >= 0xe && c <= 0x1f) || c == 0x7f ||
                     c == 0x8f || c == 0x9f;
      bool space = c == 0x9 || c == 0xa || c == 0xc || c == 0xd || c == 0x1680 ||
                   (c >= 0x200b && c <= 0x200f) || c == 0x2028 || c == 0x2029 || c == 0x2581 ||
                   c == 0xfeff || c == 0xfffd;
      if (!removed) out.append(space ? " " : bytes);
    });
  }
};

class ByteLevelText : public Normalizer {
 public:
  void apply(NormalizedText& text) const override {
    change_characters(text, [](CodePoint, std::string_view bytes, std::string& out) {
      out.append(to_byte_level(bytes));
    });
  }
};

// As in the reference, a short grapheme is looked up as a whole, and its shortest matching rule
// replaces all of it; otherwise rules apply character by character.
class Precompiled : public Normalizer {
 public:
  explicit Precompiled(Charsmap map) : map_(std::move(map)) {}
  void apply(NormalizedText& text) const override {
    constexpr std::size_t kShort = 6;
    std::string out;
    std::size_t origin = 0;
    std::string_view rest = text.text;
    for (bool first = text.origin_bytes > 0; !rest.empty(); first = false) {
      text.check_growth(out.size());
      std::string_view grapheme = rest.substr(0, first_grapheme(rest));
      rest.remove_prefix(grapheme.size());
      if (grapheme.size() < kShort && append_rule(out, grapheme)) {
        bool single = point_bytes(grapheme[0]) == grapheme.size();
        if (first && !out.empty()) origin = single ? out.size() : point_bytes(out[0]);
        continue;
      }
      for (std::size_t at = 0; at < grapheme.size();) {
        std::string_view part = grapheme.substr(at, point_bytes(grapheme[at]));
        if (!append_rule(out, part)) out.append(part);
        if (first && at == 0) origin = out.size();
        at += part.size();
      }
    }
    text.become(std::move(out), origin);
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
    if (chinese) space_chinese(text);
    if (accents) {
      apply_form(text, NormalForm::kNfd);
      remove_characters(text, trait::kBertAccent);
    }
    if (lower) make_lower(text);
  }

 private:
  static void clean_up(NormalizedText& text) {
    change_characters(text, [](CodePoint point, std::string_view bytes, std::string& out) {
      std::uint16_t traits = unicode_table().traits(point);
      if (point == 0 || point == 0xfffd || (traits & trait::kBertControl) != 0) return;
      out.append((traits & trait::kSpace) != 0 ? " " : bytes);
    });
  }

  static bool is_chinese(CodePoint c) {
    return (c >= 0x4e00 && c <= 0x9fff) || (c >= 0x3400 && c <= 0x4dbf) ||
           (c >= 0x20000 && c <= 0x2a6df) || (c >= 0x2a700 && c <= 0x2b73f) ||
           (c >= 0x2b740 && c <= 0x2b81f) || (c >= 0x2b920 && c <= 0x2ceaf) ||
           (c >= 0xf900 && c <= 0xfaff) || (c >= 0x2f800 && c <= 0x2fa1f);
  }

  static void space_chinese(NormalizedText& text) {
    change_characters(text, [](CodePoint point, std::string_view bytes, std::string& out) {
      if (point < 0x3400 || !is_chinese(point)) {
        out.append(bytes);
      } else {
        out.append(" ").append(bytes).append(" ");
      }
    });
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
