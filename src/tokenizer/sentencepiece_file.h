// SentencePiece's .model files: what is in them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/charsmap.h"

namespace bev {

enum class PieceType : std::uint8_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};

struct SentencePiece {
  std::string text;
  float score = 0;
  PieceType type = PieceType::kNormal;
};

struct SentencePieceRules {  // how text is normalized
  Charsmap map;
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
};

struct SentencePieceFile {
  std::vector<SentencePiece> pieces;
  bool unigram = true;  // otherwise BPE
  bool byte_fallback = false;
  bool whitespace_as_suffix = false;
  std::string unknown_surface = " \xe2\x81\x87 ";
  std::string begin_piece = "<s>", end_piece = "</s>";
  SentencePieceRules normalizer, denormalizer;
};

// Error(kInput) naming `source` when the bytes are broken or the model is of another kind.
SentencePieceFile read_sentencepiece_file(std::string_view bytes, const std::string& source);

}  // namespace bev
