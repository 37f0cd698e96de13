#include "data/masked/masked_vocabulary.h"

#include <initializer_list>
#include <numeric>
#include <optional>
#include <string_view>

#include "base/error.h"

namespace bev {

namespace {

constexpr std::string_view kContinuationMark = "##";

// Id of the first name that is a token, or -1.
std::int32_t find_token(const Tokenizer& tokenizer, std::initializer_list<std::string_view> names) {
  for (std::string_view name : names) {
    if (std::optional<std::int32_t> id = tokenizer.token_id(name)) return *id;
  }
  return -1;
}

std::string sentinel_name(std::size_t index) { return concat("<extra_id_", index, ">"); }

void add_sentinels(const Tokenizer& tokenizer, std::int64_t wanted, MaskedVocabulary& vocabulary) {
  auto count = static_cast<std::size_t>(wanted);
  for (std::size_t i = 0; wanted == 0 || i < count; ++i) {
    std::optional<std::int32_t> id = tokenizer.token_id(sentinel_name(i));
    if (!id && wanted == 0) break;
    if (!id) {
      id = static_cast<std::int32_t>(vocabulary.pieces.size());
      vocabulary.pieces.push_back(PieceKind::kWordStart);
      vocabulary.tokens.push_back(*id);
    }
    vocabulary.sentinels.push_back(*id);
  }
}

struct Need {
  const char* names;
  bool met;
};

void check_needs(const MaskedVocabulary& vocabulary, const char* dataset,
                 std::initializer_list<Need> needs) {
  std::string missing;
  for (const Need& need : needs) {
    if (!need.met) missing += concat(missing.empty() ? "" : ", ", need.names);
  }
  BEV_CHECK(missing.empty(), ErrorKind::kInput, vocabulary.name, ": has no token ", missing, "; ",
            dataset, " samples need it");
}

}  // namespace

MaskedVocabulary read_masked_vocabulary(const Tokenizer& tokenizer, const std::string& name,
                                        std::int64_t extra_ids) {
  MaskedVocabulary out;
  out.name = name;
  for (std::int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    std::optional<std::string> text = tokenizer.token_text(id);
    out.pieces.push_back(!text                                  ? PieceKind::kAbsent
                         : text->starts_with(kContinuationMark) ? PieceKind::kContinuation
                                                                : PieceKind::kWordStart);
    if (text) out.tokens.push_back(id);
  }
  out.cls = find_token(tokenizer, {"[CLS]", "<CLS>", "<cls>"});
  out.sep = find_token(tokenizer, {"[SEP]", "<SEP>", "<sep>"});
  out.mask = find_token(tokenizer, {"[MASK]", "<MASK>", "<mask>"});
  out.pad = find_token(tokenizer, {"[PAD]", "<PAD>", "<pad>"});
  out.bos = find_token(tokenizer, {"[BOS]", "<BOS>", "<bos>", "<s>"});
  out.eos = find_token(tokenizer, {"[EOS]", "<EOS>", "<eos>", "</s>"});
  if (out.bos < 0) out.bos = out.cls;
  if (out.eos < 0) out.eos = out.sep;
  // Padding with the id of eos is indistinguishable from it.
  if (out.pad == out.eos) out.pad = -1;
  add_sentinels(tokenizer, extra_ids, out);
  return out;
}

void check_bert_vocabulary(const MaskedVocabulary& vocabulary) {
  check_needs(vocabulary, "bert",
              {{"[CLS]", vocabulary.cls >= 0},
               {"[SEP]", vocabulary.sep >= 0},
               {"[MASK]", vocabulary.mask >= 0}});
}

void check_t5_vocabulary(const MaskedVocabulary& vocabulary) {
  check_needs(vocabulary, "t5",
              {{"[BOS] or [CLS] (first token of the decoder)", vocabulary.bos >= 0},
               {"[EOS], </s> or [SEP] (last token of the decoder)", vocabulary.eos >= 0},
               {"<extra_id_0> (give --vocab-extra-ids to add it)", !vocabulary.sentinels.empty()}});
}

}  // namespace bev
