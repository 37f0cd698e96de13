#include "tokenizer/pipeline/pre_tokenizer.h"

#include <algorithm>

#include "base/error.h"
#include "tokenizer/pipeline/byte_level.h"
#include "tokenizer/pipeline/piece_cuts.h"
#include "tokenizer/text/regex.h"
#include "tokenizer/text/unicode.h"

namespace bev {

namespace {

constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

class SplitByRegex : public PreTokenizer {
 public:
  SplitByRegex(const std::string& pattern, Behavior behavior, bool invert,
               RegexDialect dialect = RegexDialect::kOniguruma)
      : behavior_(behavior), invert_(invert), splitter_(find_splitter(pattern, dialect)) {
    if (!splitter_ || behavior != Behavior::kIsolated) regex_.emplace(pattern, dialect);
  }

  void apply(Pieces& pieces) const override {
    cut(pieces, behavior_, [&](std::string_view text, std::vector<Stretch>& out) {
      if (regex_) {
        find_matches(text, out);
      } else {
        for (std::size_t at = 0; at < text.size();) {
          std::size_t end = splitter_->word_end(text, at);
          out.push_back({at, end, true});
          at = end;
        }
      }
    });
  }

 private:
  void find_matches(std::string_view text, std::vector<Stretch>& out) const {
    std::size_t done = 0;
    Regex::Matches matches(*regex_, text);
    while (std::optional<Match> match = matches.next()) {
      if (done < match->begin) out.push_back({done, match->begin, invert_});
      out.push_back({match->begin, match->end, !invert_});
      done = match->end;
    }
    if (done < text.size()) out.push_back({done, text.size(), invert_});
  }

  Behavior behavior_;
  bool invert_;
  std::optional<Splitter> splitter_;
  std::optional<Regex> regex_;  // used if there is no splitter
};

class ByteLevel : public PreTokenizer {
 public:
  ByteLevel(bool prefix_space, bool use_regex, bool map) : prefix_space_(prefix_space), map_(map) {
    if (use_regex) split_.emplace(std::string(kGpt2Pattern), Behavior::kIsolated, false);
  }
  void apply(Pieces& pieces) const override {
    if (prefix_space_) {
      rewrite(
          pieces, [](std::string_view piece, bool) { return piece.starts_with(' ') ? "" : " "; },
          [](std::string_view part, std::string& out) { out.append(part); });
    }
    if (split_) split_->apply(pieces);
    if (!map_) return;
    rewrite(
        pieces, [](std::string_view, bool) { return ""; },
        [](std::string_view part, std::string& out) { out.append(to_byte_level(part)); });
  }

 private:
  bool prefix_space_, map_;
  std::optional<SplitByRegex> split_;
};

class Metaspace : public PreTokenizer {
 public:
  enum class Prepend : std::uint8_t { kAlways, kFirst, kNever };
  Metaspace(std::string replacement, Prepend prepend, bool split)
      : replacement_(std::move(replacement)), prepend_(prepend), split_(split) {}

  void apply(Pieces& pieces) const override {
    rewrite(
        pieces,
        [&](std::string_view piece, bool first) -> std::string_view {
          bool wanted = prepend_ == Prepend::kAlways || (prepend_ == Prepend::kFirst && first);
          bool there = piece.starts_with(' ') || piece.starts_with(replacement_);
          return wanted && !there ? std::string_view(replacement_) : std::string_view();
        },
        [&](std::string_view part, std::string& out) {
          for (char c : part) c == ' ' ? out.append(replacement_) : out.append(1, c);
        });
    if (!split_) return;
    CodePoint mark = decode_point(replacement_, 0).point;
    cut_characters(pieces, Behavior::kMergedWithNext,
                   [&](CodePoint point) { return point == mark; });
  }

 private:
  std::string replacement_;
  Prepend prepend_;
  bool split_;
};

// Splits at characters with a trait, in one or more steps.
class SplitByTrait : public PreTokenizer {
 public:
  struct Step {
    std::uint16_t bits;
    Behavior behavior;
  };
  explicit SplitByTrait(std::vector<Step> steps) : steps_(std::move(steps)) {}
  void apply(Pieces& pieces) const override {
    const UnicodeTable& table = unicode_table();
    for (Step step : steps_) {
      cut_characters(pieces, step.behavior,
                     [&](CodePoint point) { return (table.traits(point) & step.bits) != 0; });
    }
  }

 private:
  std::vector<Step> steps_;
};

class SplitByCharacter : public PreTokenizer {
 public:
  explicit SplitByCharacter(CodePoint delimiter) : delimiter_(delimiter) {}
  void apply(Pieces& pieces) const override {
    cut_characters(pieces, Behavior::kRemoved,
                   [&](CodePoint point) { return point == delimiter_; });
  }

 private:
  CodePoint delimiter_;
};

// Equivalent to \w+|[^\w\s]+ with the rest removed.
class WordsAndSigns : public PreTokenizer {
 public:
  void apply(Pieces& pieces) const override {
    const UnicodeTable& table = unicode_table();
    cut(pieces, Behavior::kIsolated, [&](std::string_view text, std::vector<Stretch>& out) {
      constexpr std::uint16_t kBits = trait::kWord | trait::kSpace;
      std::uint16_t previous = trait::kSpace;
      for (std::size_t at = 0; at < text.size();) {
        DecodedPoint next = decode_point(text, at);
        std::uint16_t kind = table.traits(next.point) & kBits;
        if ((kind & trait::kWord) != 0) kind = trait::kWord;
        if (kind == trait::kSpace) {
          // removed
        } else if (kind == previous) {
          out.back().end = at + next.bytes;
        } else {
          out.push_back({at, at + next.bytes, true});
        }
        previous = kind;
        at += next.bytes;
      }
    });
  }
};

class FixedLength : public PreTokenizer {
 public:
  explicit FixedLength(std::size_t length) : length_(length) {}
  void apply(Pieces& pieces) const override {
    cut(pieces, Behavior::kIsolated, [&](std::string_view text, std::vector<Stretch>& out) {
      std::size_t count = 0;
      for (std::size_t at = 0; at < text.size(); at += point_bytes(text[at])) {
        if (count++ % length_ == 0) out.push_back({at, at, true});
        out.back().end = at + point_bytes(text[at]);
      }
    });
  }

 private:
  std::size_t length_;
};

class PreTokenizerSequence : public PreTokenizer {
 public:
  std::vector<std::unique_ptr<PreTokenizer>> steps;
  void apply(Pieces& pieces) const override {
    for (const auto& step : steps) step->apply(pieces);
  }
};

Behavior read_behavior(const JsonValue& json, const std::string& name) {
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "Isolated") return Behavior::kIsolated;
  if (name == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::kMergedWithNext;
  if (name == "Contiguous") return Behavior::kContiguous;
  BEV_FAIL(ErrorKind::kInput, json.source(), ": the behavior \"", name, "\" is not known");
}

std::string read_character(const JsonValue& json, std::string_view key) {
  std::string text = json.need_text(key);
  BEV_CHECK(!text.empty() && point_bytes(text[0]) == text.size(), ErrorKind::kInput, json.source(),
            ": \"", key, "\" is not one character");
  return text;
}

std::unique_ptr<PreTokenizer> make_metaspace(const JsonValue& json) {
  std::string scheme = json.text("prepend_scheme").value_or("always");
  // Older form of the same option.
  if (json.flag("add_prefix_space") == false) scheme = "never";
  Metaspace::Prepend prepend = scheme == "always"  ? Metaspace::Prepend::kAlways
                               : scheme == "first" ? Metaspace::Prepend::kFirst
                                                   : Metaspace::Prepend::kNever;
  return std::make_unique<Metaspace>(read_character(json, "replacement"), prepend,
                                     json.flag("split").value_or(true));
}

std::unique_ptr<PreTokenizer> make_split(const JsonValue& json) {
  PatternText pattern = read_pattern(json);
  return std::make_unique<SplitByRegex>(pattern.regex ? pattern.text : escape_regex(pattern.text),
                                        read_behavior(json, json.need_text("behavior")),
                                        json.need_flag("invert"));
}

std::unique_ptr<PreTokenizer> by_trait(std::vector<SplitByTrait::Step> steps) {
  return std::make_unique<SplitByTrait>(std::move(steps));
}

}  // namespace

bool ends_in_byte_level(const JsonValue& json) {
  if (json.text("type") == "Sequence") {
    std::vector<JsonValue> steps = json.need_array("pretokenizers");
    return !steps.empty() && ends_in_byte_level(steps.back());
  }
  return json.text("type") == "ByteLevel";
}

std::optional<Splitter> only_splitter(const JsonValue& json) {
  std::optional<std::string> type = json.text("type");
  if (type == "ByteLevel") {
    if (json.need_flag("add_prefix_space") || !json.flag("use_regex").value_or(true)) return {};
    return find_splitter(kGpt2Pattern, RegexDialect::kOniguruma);
  }
  if (type != "Sequence") return {};
  std::vector<JsonValue> steps = json.need_array("pretokenizers");
  if (steps.size() != 2 || steps[0].text("type") != "Split") return {};
  if (steps[1].text("type") != "ByteLevel" || steps[1].need_flag("add_prefix_space")) return {};
  if (steps[1].flag("use_regex").value_or(true)) return {};
  PatternText pattern = read_pattern(steps[0]);
  if (!pattern.regex || steps[0].need_text("behavior") != "Isolated") return {};
  return find_splitter(pattern.text, RegexDialect::kOniguruma);
}

std::unique_ptr<PreTokenizer> make_regex_pre_tokenizer(const std::string& pattern,
                                                       RegexDialect dialect) {
  return std::make_unique<SplitByRegex>(pattern, Behavior::kIsolated, false, dialect);
}

std::unique_ptr<PreTokenizer> make_pre_tokenizer(const JsonValue& json, bool map_bytes) {
  if (json.is_null()) return nullptr;
  const std::string type = json.need_text("type");
  if (type == "Sequence") {
    auto sequence = std::make_unique<PreTokenizerSequence>();
    std::vector<JsonValue> steps = json.need_array("pretokenizers");
    for (std::size_t i = 0; i < steps.size(); ++i) {
      bool map = map_bytes || i + 1 < steps.size();
      if (auto step = make_pre_tokenizer(steps[i], map)) sequence->steps.push_back(std::move(step));
    }
    return sequence;
  }
  if (type == "ByteLevel") {
    return std::make_unique<ByteLevel>(json.need_flag("add_prefix_space"),
                                       json.flag("use_regex").value_or(true), map_bytes);
  }
  if (type == "Split") return make_split(json);
  if (type == "Metaspace") return make_metaspace(json);
  if (type == "Digits") {
    return by_trait(
        {{trait::kRustNumeric,
          json.need_flag("individual_digits") ? Behavior::kIsolated : Behavior::kContiguous}});
  }
  if (type == "Punctuation") {
    return by_trait({{trait::kBertPunctuation,
                      read_behavior(json, json.text("behavior").value_or("Isolated"))}});
  }
  if (type == "WhitespaceSplit") return by_trait({{trait::kSpace, Behavior::kRemoved}});
  if (type == "BertPreTokenizer") {
    return by_trait(
        {{trait::kSpace, Behavior::kRemoved}, {trait::kBertPunctuation, Behavior::kIsolated}});
  }
  if (type == "Whitespace") return std::make_unique<WordsAndSigns>();
  if (type == "CharDelimiterSplit" || type == "Delimiter") {
    std::string delimiter = read_character(json, "delimiter");
    return std::make_unique<SplitByCharacter>(decode_point(delimiter, 0).point);
  }
  if (type == "FixedLength") {
    std::int64_t length = json.integer("length").value_or(5);
    BEV_CHECK(length > 0, ErrorKind::kInput, json.source(), ": the length ", length,
              " of FixedLength is not positive");
    return std::make_unique<FixedLength>(static_cast<std::size_t>(length));
  }
  BEV_FAIL(ErrorKind::kInput, json.source(), ": the pre-tokenizer \"", type, "\" is not known");
}

}  // namespace bev
