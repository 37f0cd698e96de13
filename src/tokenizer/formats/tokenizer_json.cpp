#include "tokenizer/formats/tokenizer_json.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "base/error.h"
#include "base/json_check.h"
#include "tokenizer/models/bpe_model.h"
#include "tokenizer/models/unigram_model.h"
#include "tokenizer/models/word_piece_model.h"
#include "tokenizer/pipeline/byte_level.h"

namespace bev {

namespace {

Vocabulary read_vocabulary(const JsonValue& json) {
  Vocabulary vocabulary;
  for (auto& [text, id] : json.members()) vocabulary.add(text, id.as_integer(), json.source());
  return vocabulary;
}

// Bytes that the tokens stand for. A token with another character never matches text and gets no
// key.
Vocabulary byte_keys(const Vocabulary& vocabulary, std::string_view source) {
  Vocabulary keys;
  for (std::int32_t id = 0; id < vocabulary.end_id(); ++id) {
    const std::string* text = vocabulary.text(id);
    if (text == nullptr) continue;
    if (std::optional<std::string> bytes = from_byte_level(*text)) {
      keys.add(*std::move(bytes), id, source);
    }
  }
  return keys;
}

Vocabulary same_keys(const Vocabulary& vocabulary, std::string_view source) {
  Vocabulary keys;
  for (std::int32_t id = 0; id < vocabulary.end_id(); ++id) {
    if (const std::string* text = vocabulary.text(id)) keys.add(*text, id, source);
  }
  return keys;
}

// A merge is "left right" or ["left", "right"].
std::vector<BpeModel::TextPair> read_merges(const JsonValue& model) {
  std::vector<BpeModel::TextPair> merges;
  for (const JsonValue& merge : model.need_array("merges")) {
    if (merge.is_array()) {
      std::vector<JsonValue> pair = merge.items();
      BEV_CHECK(pair.size() == 2, ErrorKind::kInput, model.source(), ": a merge of ", pair.size(),
                " tokens");
      merges.emplace_back(pair[0].as_text(), pair[1].as_text());
      continue;
    }
    std::string text = merge.as_text();
    std::size_t space = text.find(' ');
    BEV_CHECK(space != std::string::npos && text.find(' ', space + 1) == std::string::npos,
              ErrorKind::kInput, model.source(), ": the merge ", quote(text), " is not two tokens");
    merges.emplace_back(text.substr(0, space), text.substr(space + 1));
  }
  return merges;
}

std::unique_ptr<WordModel> read_bpe(const JsonValue& json, bool bytes) {
  const JsonValue dropout = json["dropout"];
  BEV_CHECK(dropout.is_null() || dropout.as_number() == 0, ErrorKind::kInput, json.source(),
            ": the model has dropout, so its tokens are a matter of chance");
  BpeOptions options;
  options.byte_fallback = json.flag("byte_fallback").value_or(false);
  options.bytes = bytes;
  options.continuing_prefix = json.text("continuing_subword_prefix").value_or("");
  options.end_suffix = json.text("end_of_word_suffix").value_or("");
  options.unknown = json.text("unk_token");
  options.fuse_unknown = json.flag("fuse_unk").value_or(false);
  options.whole_words = json.flag("ignore_merges").value_or(false);
  Vocabulary vocabulary = read_vocabulary(json["vocab"]);
  Vocabulary keys =
      bytes ? byte_keys(vocabulary, json.source()) : same_keys(vocabulary, json.source());
  return std::make_unique<BpeModel>(std::move(vocabulary), std::move(keys), read_merges(json),
                                    std::move(options), json.source());
}

std::unique_ptr<WordModel> read_word_piece(const JsonValue& json) {
  WordPieceOptions options;
  options.unknown = json.text("unk_token").value_or(options.unknown);
  options.continuing_prefix =
      json.text("continuing_subword_prefix").value_or(options.continuing_prefix);
  std::int64_t most = json.integer("max_input_chars_per_word").value_or(100);
  options.most_characters = static_cast<std::size_t>(std::max<std::int64_t>(most, 0));
  return std::make_unique<WordPieceModel>(read_vocabulary(json["vocab"]), std::move(options));
}

// A score as the reference's JSON parser reads it: all digits as one integer, scaled once by a
// power of ten, which may be off in the last bit. This decides between segmentations of equal
// score.
double as_reference_reads(double score) {
  std::array<char, 32> text{};  // zero-terminated
  auto [end, error] =
      std::to_chars(text.begin(), text.end(), std::abs(score), std::chars_format::scientific);
  std::uint64_t digits = 0;
  int exponent = 0;
  const char* mark = std::find(text.data(), end, 'e');
  for (const char* c = text.data(); c != mark; ++c) {
    if (*c == '.') {
      exponent = static_cast<int>(c + 1 - mark);
    } else {
      digits = digits * 10 + static_cast<std::uint64_t>(*c - '0');
    }
  }
  exponent += std::atoi(mark + 1);
  double scale = std::pow(10.0, std::abs(exponent));
  double value = static_cast<double>(digits);
  return std::copysign(exponent < 0 ? value / scale : value * scale, score);
}

std::unique_ptr<WordModel> read_unigram(const JsonValue& json) {
  std::vector<JsonValue> entries = json.need_array("vocab");
  Vocabulary vocabulary;
  std::vector<double> scores(entries.size());
  // If a text occurs twice, the last id wins.
  for (std::size_t id = entries.size(); id-- > 0;) {
    std::vector<JsonValue> pair = entries[id].items();
    BEV_CHECK(pair.size() == 2, ErrorKind::kInput, json.source(),
              ": a piece is not a text and a score");
    vocabulary.add(pair[0].as_text(), static_cast<std::int64_t>(id), json.source());
    scores[id] = as_reference_reads(pair[1].as_number());
  }
  std::optional<std::int32_t> unknown;
  if (std::optional<std::int64_t> id = json.integer("unk_id")) {
    BEV_CHECK(*id >= 0 && *id < vocabulary.end_id(), ErrorKind::kInput, json.source(), ": unk_id ",
              *id, " is not in the vocabulary");
    unknown = static_cast<std::int32_t>(*id);
  }
  return std::make_unique<UnigramModel>(std::move(vocabulary), std::move(scores), unknown,
                                        json.flag("byte_fallback").value_or(false));
}

// Older files omit the type.
std::string model_type(const JsonValue& json) {
  if (std::optional<std::string> type = json.text("type")) return *type;
  if (!json["merges"].is_null()) return "BPE";
  if (json["vocab"].is_array()) return "Unigram";
  return json["continuing_subword_prefix"].is_null() ? "WordLevel" : "WordPiece";
}

std::unique_ptr<WordModel> read_model(const JsonValue& json, bool bytes) {
  const std::string type = model_type(json);
  if (type == "BPE") return read_bpe(json, bytes);
  if (type == "WordPiece") return read_word_piece(json);
  if (type == "Unigram") return read_unigram(json);
  BEV_CHECK(type == "WordLevel", ErrorKind::kInput, json.source(), ": the model \"", type,
            "\" is not known");
  return std::make_unique<WordLevelModel>(read_vocabulary(json["vocab"]),
                                          json.text("unk_token").value_or("<unk>"));
}

// The id of an added token is that of the vocabulary, or the next free one; the id in the file is
// ignored, as in the reference.
std::vector<AddedToken> read_added_tokens(const JsonValue& root, const Vocabulary& vocabulary,
                                          const Normalizer* normalizer) {
  std::vector<AddedToken> tokens;
  if (root["added_tokens"].is_null()) return tokens;
  auto next = static_cast<std::int32_t>(vocabulary.size());
  for (const JsonValue& json : root.need_array("added_tokens")) {
    AddedToken token;
    token.content = json.need_text("content");
    if (token.content.empty()) continue;
    token.single_word = json.flag("single_word").value_or(false);
    token.strip_left = json.flag("lstrip").value_or(false);
    token.strip_right = json.flag("rstrip").value_or(false);
    token.special = json.flag("special").value_or(false);
    token.normalized = json.flag("normalized").value_or(!token.special);
    token.shown = token.content;
    if (token.normalized && normalizer != nullptr) {
      NormalizedText text{token.content};
      normalizer->apply(text);
      token.shown = std::move(text.text);
    }
    auto same = std::ranges::find(tokens, token.content, &AddedToken::content);
    if (same != tokens.end()) {
      token.id = same->id;
      *same = std::move(token);
      continue;
    }
    std::optional<std::int32_t> known = vocabulary.find(token.content);
    token.id = known ? *known : next++;
    tokens.push_back(std::move(token));
  }
  return tokens;
}

}  // namespace

PipelineParts read_tokenizer_json(const JsonValue& root) { return read_tokenizer_json(root, root); }

PipelineParts read_tokenizer_json(const JsonValue& root, const JsonValue& pipeline) {
  PipelineParts parts;
  const JsonValue pre_tokenizer = pipeline["pre_tokenizer"], model = root["model"];
  BEV_CHECK(model.is_object(), ErrorKind::kInput, root.source(), ": \"model\" is missing");
  // Words stay raw bytes if the model accepts them; the byte-to-unicode map is skipped then.
  bool bytes = model_type(model) == "BPE" && ends_in_byte_level(pre_tokenizer) &&
               !model.flag("byte_fallback").value_or(false);
  parts.normalizer = make_normalizer(pipeline["normalizer"]);
  parts.pre_tokenizer = make_pre_tokenizer(pre_tokenizer, !bytes);
  if (bytes) parts.splitter = only_splitter(pre_tokenizer);
  parts.model = read_model(model, bytes);
  parts.added =
      AddedTokens(read_added_tokens(root, parts.model->vocabulary(), parts.normalizer.get()));
  parts.post_processor = PostProcessor(root["post_processor"]);
  parts.decoder = make_decoder(pipeline["decoder"]);
  return parts;
}

}  // namespace bev
