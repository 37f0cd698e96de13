// Vocabulary properties that masking needs: the special tokens, and which tokens begin a word.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace bev {

enum class PieceKind : std::uint8_t {
  kAbsent,  // the id is not a token
  kWordStart,
  kContinuation,  // WordPiece prefix "##"
};

struct MaskedVocabulary {
  std::string name;  // name of the tokenizer, for messages
  // -1: none.
  std::int32_t cls = -1, sep = -1, mask = -1, pad = -1, bos = -1, eos = -1;
  std::vector<std::int32_t> sentinels;  // <extra_id_0>, <extra_id_1>, ...
  std::vector<PieceKind> pieces;        // by id
  std::vector<std::int32_t> tokens;     // valid ids, ascending

  PieceKind piece(std::int32_t id) const {
    auto at = static_cast<std::size_t>(id);
    return id >= 0 && at < pieces.size() ? pieces[at] : PieceKind::kAbsent;
  }
};

// Looks up special tokens by their names in BERT and T5 vocabularies. As in Megatron, missing bos
// and eos tokens default to [CLS] and [SEP], a pad token that equals eos is none, and missing
// sentinels are appended after the last id. extra_ids is the number of sentinels; 0: those of the
// tokenizer.
MaskedVocabulary read_masked_vocabulary(const Tokenizer& tokenizer, const std::string& name,
                                        std::int64_t extra_ids);

// Throw Error(kInput) naming the missing tokens: [CLS], [SEP] and [MASK]; or bos, eos and
// sentinels.
void check_bert_vocabulary(const MaskedVocabulary& vocabulary);
void check_t5_vocabulary(const MaskedVocabulary& vocabulary);

}  // namespace bev
