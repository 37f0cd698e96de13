#include "tokenizer/pipeline/decoder.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/error.h"
#include "tokenizer/pipeline/byte_level.h"
#include "tokenizer/text/regex.h"
#include "tokenizer/text/utf8.h"

namespace bev {

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  if (from.empty()) return std::string(text);
  std::string out;
  std::size_t done = 0;
  for (std::size_t at = 0; (at = text.find(from, done)) != std::string_view::npos;) {
    out.append(text.substr(done, at - done)).append(to);
    done = at + from.size();
  }
  return out.append(text.substr(done));
}

namespace {

struct Change {
  std::string_view from, to;
};
constexpr Change kSpaceChanges[] = {{" .", "."},     {" ?", "?"},     {" !", "!"},   {" ,", ","},
                                    {" ' ", "'"},    {" n't", "n't"}, {" 'm", "'m"}, {" 's", "'s"},
                                    {" 've", "'ve"}, {" 're", "'re"}};

// The library's clean-up of a single token also changes "do not", before the contraction 's.
std::string clean_up_token(std::string text) {
  for (Change change : kSpaceChanges) {
    if (change.from == " 's") text = replace_all(text, " do not", " don't");
    text = replace_all(text, change.from, change.to);
  }
  return text;
}

}  // namespace

std::string clean_up_spaces(std::string text) {
  for (Change change : kSpaceChanges) text = replace_all(text, change.from, change.to);
  return text;
}

namespace {

class ByteLevelDecoder : public Decoder {
 public:
  explicit ByteLevelDecoder(bool last) : last_(last) {}
  void apply(std::vector<std::string>& tokens) const override {
    std::string bytes;
    for (const std::string& token : tokens) {
      std::optional<std::string> decoded = from_byte_level(token);
      bytes.append(decoded ? *decoded : token);
    }
    tokens.assign(1, last_ ? std::move(bytes) : to_valid_utf8(bytes));
  }

 private:
  bool last_;
};

class WordPieceDecoder : public Decoder {
 public:
  WordPieceDecoder(std::string prefix, bool cleanup)
      : prefix_(std::move(prefix)), cleanup_(cleanup) {}
  void apply(std::vector<std::string>& tokens) const override {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (i > 0) {
        if (tokens[i].starts_with(prefix_)) {
          tokens[i].erase(0, prefix_.size());
        } else {
          tokens[i].insert(0, 1, ' ');
        }
      }
      if (cleanup_) tokens[i] = clean_up_token(std::move(tokens[i]));
    }
  }

 private:
  std::string prefix_;
  bool cleanup_;
};

class MetaspaceDecoder : public Decoder {
 public:
  MetaspaceDecoder(std::string replacement, bool drops_first)
      : replacement_(std::move(replacement)), drops_first_(drops_first) {}
  void apply(std::vector<std::string>& tokens) const override {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = replace_all(tokens[i], replacement_, i == 0 && drops_first_ ? "" : " ");
    }
  }

 private:
  std::string replacement_;
  bool drops_first_;
};

class BpeDecoder : public Decoder {
 public:
  explicit BpeDecoder(std::string suffix) : suffix_(std::move(suffix)) {}
  void apply(std::vector<std::string>& tokens) const override {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = replace_all(tokens[i], suffix_, i + 1 == tokens.size() ? "" : " ");
    }
  }

 private:
  std::string suffix_;
};

// <0x41> stands for its byte; bytes that do not form UTF-8 become one U+FFFD each.
class ByteFallbackDecoder : public Decoder {
 public:
  void apply(std::vector<std::string>& tokens) const override {
    std::vector<std::string> out;
    std::string bytes;
    auto flush = [&] {
      if (bytes.empty()) return;
      if (is_valid_utf8(bytes)) {
        out.push_back(bytes);
      } else {
        out.insert(out.end(), bytes.size(), std::string(kReplacementCharacter));
      }
      bytes.clear();
    };
    for (std::string& token : tokens) {
      if (std::optional<char> byte = byte_of(token)) {
        bytes.push_back(*byte);
        continue;
      }
      flush();
      out.push_back(std::move(token));
    }
    flush();
    tokens = std::move(out);
  }

 private:
  static std::optional<char> byte_of(std::string_view token) {
    if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return std::nullopt;
    unsigned value = 0;
    const char* begin = token.data() + (token[3] == '+' ? 4 : 3);  // Rust's parser accepts a sign
    const char* end = token.data() + 5;
    auto [stop, error] = std::from_chars(begin, end, value, 16);
    if (error != std::errc() || stop != end) return std::nullopt;
    return static_cast<char>(value);
  }
};

class FuseDecoder : public Decoder {
 public:
  void apply(std::vector<std::string>& tokens) const override {
    std::string all;
    for (const std::string& token : tokens) all.append(token);
    tokens.assign(1, std::move(all));
  }
};

class StripDecoder : public Decoder {
 public:
  StripDecoder(std::string content, std::int64_t start, std::int64_t stop)
      : content_(std::move(content)), start_(start), stop_(stop) {}
  void apply(std::vector<std::string>& tokens) const override {
    for (std::string& token : tokens) {
      std::string_view rest = token;
      for (std::int64_t i = 0; i < start_ && rest.starts_with(content_); ++i) {
        rest.remove_prefix(content_.size());
      }
      for (std::int64_t i = 0; i < stop_ && rest.ends_with(content_); ++i) {
        rest.remove_suffix(content_.size());
      }
      token = std::string(rest);
    }
  }

 private:
  std::string content_;
  std::int64_t start_, stop_;
};

class ReplaceDecoder : public Decoder {
 public:
  ReplaceDecoder(const PatternText& pattern, std::string content)
      : literal_(pattern.regex ? "" : pattern.text), content_(std::move(content)) {
    if (pattern.regex) regex_.emplace(pattern.text, RegexDialect::kOniguruma);
  }
  void apply(std::vector<std::string>& tokens) const override {
    // Bounds the growth: a few Replace steps could double a text repeatedly.
    constexpr std::size_t kAlways = std::size_t{64} << 20;
    std::size_t bytes = 0;
    for (const std::string& token : tokens) bytes += token.size();
    std::size_t left = std::max(kAlways, bytes);
    for (std::string& token : tokens) {
      token = replaced(token, left);
      left -= token.size();
    }
  }

 private:
  std::string replaced(std::string_view token, std::size_t most) const {
    std::string out;
    std::size_t done = 0;
    auto copy_to = [&](std::size_t end, std::string_view then) {
      out.append(token.substr(done, end - done)).append(then);
      BEV_CHECK(out.size() <= most, ErrorKind::kInput,
                "the tokenizer's decoder makes a text too long; its steps feed each other");
    };
    auto replace = [&](Match match) {
      copy_to(match.begin, content_);
      done = match.end;
    };
    if (regex_) {
      Regex::Matches matches(*regex_, token);
      while (std::optional<Match> match = matches.next()) replace(*match);
    } else if (!literal_.empty()) {
      for (std::size_t at; (at = token.find(literal_, done)) != token.npos;) {
        replace({at, at + literal_.size()});
      }
    }
    copy_to(token.size(), "");
    return out;
  }

  std::string literal_, content_;
  std::optional<Regex> regex_;
};

class CtcDecoder : public Decoder {
 public:
  CtcDecoder(std::string pad, std::string delimiter, bool cleanup)
      : pad_(std::move(pad)), delimiter_(std::move(delimiter)), cleanup_(cleanup) {}
  void apply(std::vector<std::string>& tokens) const override {
    auto repeated = std::unique(tokens.begin(), tokens.end());
    tokens.erase(repeated, tokens.end());
    for (std::string& token : tokens) {
      token = replace_all(token, pad_, "");
      if (cleanup_) token = replace_all(clean_up_token(std::move(token)), delimiter_, " ");
    }
    std::erase(tokens, "");
  }

 private:
  std::string pad_, delimiter_;
  bool cleanup_;
};

class DecoderSequence : public Decoder {
 public:
  std::vector<std::unique_ptr<Decoder>> steps;
  void apply(std::vector<std::string>& tokens) const override {
    for (const auto& step : steps) step->apply(tokens);
  }
};

std::unique_ptr<Decoder> make_step(const JsonValue& json, bool last) {
  const std::string type = json.need_text("type");
  if (type == "Sequence") {
    auto sequence = std::make_unique<DecoderSequence>();
    std::vector<JsonValue> steps = json.need_array("decoders");
    for (std::size_t i = 0; i < steps.size(); ++i) {
      sequence->steps.push_back(make_step(steps[i], last && i + 1 == steps.size()));
    }
    return sequence;
  }
  if (type == "ByteLevel") return std::make_unique<ByteLevelDecoder>(last);
  if (type == "ByteFallback") return std::make_unique<ByteFallbackDecoder>();
  if (type == "Fuse") return std::make_unique<FuseDecoder>();
  if (type == "BPEDecoder") return std::make_unique<BpeDecoder>(json.need_text("suffix"));
  if (type == "WordPiece") {
    return std::make_unique<WordPieceDecoder>(json.need_text("prefix"), json.need_flag("cleanup"));
  }
  if (type == "Metaspace") {
    bool never = json.text("prepend_scheme") == "never" || json.flag("add_prefix_space") == false;
    return std::make_unique<MetaspaceDecoder>(json.need_text("replacement"), !never);
  }
  if (type == "Strip") {
    return std::make_unique<StripDecoder>(json.need_text("content"),
                                          json.integer("start").value_or(0),
                                          json.integer("stop").value_or(0));
  }
  if (type == "Replace") {
    return std::make_unique<ReplaceDecoder>(read_pattern(json), json.need_text("content"));
  }
  if (type == "CTC") {
    return std::make_unique<CtcDecoder>(json.need_text("pad_token"),
                                        json.need_text("word_delimiter_token"),
                                        json.need_flag("cleanup"));
  }
  BEV_FAIL(ErrorKind::kInput, json.source(), ": the decoder \"", type, "\" is not known");
}

}  // namespace

std::unique_ptr<Decoder> make_decoder(const JsonValue& json) {
  return json.is_null() ? nullptr : make_step(json, true);
}

std::unique_ptr<Decoder> make_byte_level_decoder() {
  return std::make_unique<ByteLevelDecoder>(true);
}

}  // namespace bev
