#include "tokenizer/formats/sentencepiece_file.h"

#include <cmath>

#include "base/error.h"
#include "base/json_check.h"
#include "tokenizer/formats/protobuf_reader.h"
#include "tokenizer/text/utf8.h"

namespace bev {

namespace {

// Field numbers of sentencepiece_model.proto.
namespace model_field {
constexpr std::uint32_t kPiece = 1, kTrainer = 2, kNormalizer = 3, kDenormalizer = 5;
}
namespace piece_field {
constexpr std::uint32_t kText = 1, kScore = 2, kType = 3;
}
namespace trainer_field {
constexpr std::uint32_t kModelType = 3, kWhitespaceAsSuffix = 24, kByteFallback = 35,
                        kUnknownSurface = 44, kBeginPiece = 46, kEndPiece = 47;
}
namespace normalizer_field {
constexpr std::uint32_t kCharsmap = 2, kAddDummyPrefix = 3, kRemoveExtraWhitespaces = 4,
                        kEscapeWhitespaces = 5;
}

SentencePiece read_piece(std::string_view bytes, const std::string& source) {
  SentencePiece piece;
  ProtobufReader reader(bytes, source);
  while (reader.next()) {
    if (reader.field() == piece_field::kText) piece.text = reader.text();
    if (reader.field() == piece_field::kScore) piece.score = reader.number();
    if (reader.field() == piece_field::kType) {
      BEV_CHECK(reader.integer() >= 1 && reader.integer() <= 6, ErrorKind::kInput, source,
                ": a piece of type ", reader.integer());
      piece.type = static_cast<PieceType>(reader.integer());
    }
  }
  BEV_CHECK(!piece.text.empty() && is_valid_utf8(piece.text), ErrorKind::kInput, source,
            ": the piece ", quote(piece.text), " is no text");
  BEV_CHECK(std::isfinite(piece.score), ErrorKind::kInput, source, ": the piece ",
            quote(piece.text), " has no finite score");
  return piece;
}

void read_trainer(std::string_view bytes, SentencePieceFile& file, const std::string& source) {
  constexpr std::uint64_t kUnigram = 1, kBpe = 2;
  ProtobufReader reader(bytes, source);
  while (reader.next()) {
    switch (reader.field()) {
      case trainer_field::kModelType:
        BEV_CHECK(reader.integer() == kUnigram || reader.integer() == kBpe, ErrorKind::kInput,
                  source, ": model type ", reader.integer(), " is neither unigram nor BPE");
        file.unigram = reader.integer() == kUnigram;
        break;
      case trainer_field::kWhitespaceAsSuffix:
        file.whitespace_as_suffix = reader.flag();
        break;
      case trainer_field::kByteFallback:
        file.byte_fallback = reader.flag();
        break;
      case trainer_field::kUnknownSurface:
        file.unknown_surface = reader.text();
        break;
      case trainer_field::kBeginPiece:
        file.begin_piece = reader.text();
        break;
      case trainer_field::kEndPiece:
        file.end_piece = reader.text();
        break;
      default:
        break;
    }
  }
}

void read_rules(std::string_view bytes, SentencePieceRules& rules, const std::string& source) {
  ProtobufReader reader(bytes, source);
  while (reader.next()) {
    switch (reader.field()) {
      case normalizer_field::kCharsmap:
        if (!reader.text().empty()) rules.map = Charsmap(reader.text(), source);
        break;
      case normalizer_field::kAddDummyPrefix:
        rules.add_dummy_prefix = reader.flag();
        break;
      case normalizer_field::kRemoveExtraWhitespaces:
        rules.remove_extra_whitespaces = reader.flag();
        break;
      case normalizer_field::kEscapeWhitespaces:
        rules.escape_whitespaces = reader.flag();
        break;
      default:
        break;
    }
  }
}

}  // namespace

SentencePieceFile read_sentencepiece_file(std::string_view bytes, const std::string& source) {
  SentencePieceFile file;
  bool has_trainer = false, has_normalizer = false;
  ProtobufReader reader(bytes, source);
  while (reader.next()) {
    switch (reader.field()) {
      case model_field::kPiece:
        file.pieces.push_back(read_piece(reader.text(), source));
        break;
      case model_field::kTrainer:
        read_trainer(reader.text(), file, source);
        has_trainer = true;
        break;
      case model_field::kNormalizer:
        read_rules(reader.text(), file.normalizer, source);
        has_normalizer = true;
        break;
      case model_field::kDenormalizer:
        read_rules(reader.text(), file.denormalizer, source);
        break;
      default:
        break;
    }
  }
  BEV_CHECK(!file.pieces.empty(), ErrorKind::kInput, source, ": no pieces");
  // These messages follow the pieces, so a file truncated between two pieces lacks them.
  BEV_CHECK(has_trainer && has_normalizer, ErrorKind::kInput, source,
            ": the settings of trainer and normalizer are missing; the file may be cut short");
  return file;
}

}  // namespace bev
