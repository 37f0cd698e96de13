// What masking has to know of a vocabulary: the tokens with a meaning of their own, and which
// tokens begin a word.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace bev {

enum class PieceKind : std::uint8_t {
  kAbsent,  // the id is no token
  kWordStart,
  kContinuation,  // WordPiece writes "##" in front of it
};

struct MaskedVocabulary {
  std::string name;  // of the tokenizer, for messages
  // -1: there is none.
  std::int32_t cls = -1, sep = -1, mask = -1, pad = -1, bos = -1, eos = -1;
  std::vector<std::int32_t> sentinels;  // <extra_id_0>, <extra_id_1>, ...
  std::vector<PieceKind> pieces;        // of every id
  std::vector<std::int32_t> tokens;     // the ids that are tokens, ascending

  PieceKind piece(std::int32_t id) const {
    auto at = static_cast<std::size_t>(id);
    return id >= 0 && at < pieces.size() ? pieces[at] : PieceKind::kAbsent;
  }
};

// By the names that tokens have in vocabularies of BERT and T5. As in Megatron, the first and the
// last token stand in for missing tokens of beginning and end, a pad token that is also the end of
// text is none, and sentinels that are missing are added after the last id. extra_ids: how many
// sentinels; 0: those that the tokenizer has.
MaskedVocabulary read_masked_vocabulary(const Tokenizer& tokenizer, const std::string& name,
                                        std::int64_t extra_ids);

// Error(kInput) naming the tokens that are missing: [CLS], [SEP] and [MASK]; or beginning, end and
// sentinels.
void check_bert_vocabulary(const MaskedVocabulary& vocabulary);
void check_t5_vocabulary(const MaskedVocabulary& vocabulary);

}  // namespace bev
