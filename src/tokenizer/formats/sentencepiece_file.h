// Parser of SentencePiece .model files (protobuf).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/pipeline/charsmap.h"

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

struct SentencePieceRules {  // normalizer settings
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

// Throws Error(kInput) naming `source` if the bytes are malformed or the model type is not
// supported.
SentencePieceFile read_sentencepiece_file(std::string_view bytes, const std::string& source);

}  // namespace bev
