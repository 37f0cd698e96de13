// Encoding of a record into the token sequences written for it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/preprocess/preprocess_config.h"
#include "data/preprocess/record_texts.h"
#include "tokenizer/tokenizer.h"

namespace bev {

// Concatenated non-empty sequences.
struct EncodedText {
  std::vector<std::int32_t> ids;
  std::vector<std::int32_t> lengths;
};

struct EncodedRecord {
  std::vector<EncodedText> texts;  // one per key
  std::string problem;             // non-empty: why there are no texts
};

// Thread safe.
class RecordEncoder {
 public:
  // Both must outlive it. Throws Error(kConfig) if the tokenizer lacks the end-of-document token
  // that is to be appended.
  RecordEncoder(const PreprocessConfig& config, const Tokenizer& tokenizer);

  // As in Megatron's preprocess_data.py, a sentence without ids is dropped, and the end-of-document
  // token is appended to the document's last sentence, if it has one.
  EncodedRecord encode(const Record& record, TextFormat format) const;

 private:
  EncodedText encode_document(const std::vector<std::string>& texts, bool ends_document) const;
  void append(std::string_view sentence, EncodedText& out) const;

  const PreprocessConfig& config_;
  const Tokenizer& tokenizer_;
  std::optional<std::int32_t> eod_;
  TextEncoding encoding_;
};

}  // namespace bev
