// From a record to the sequences of token ids that are written for it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/preprocess_config.h"
#include "data/record_texts.h"
#include "tokenizer/tokenizer.h"

namespace bev {

// Sequences one after the other; none is empty.
struct EncodedText {
  std::vector<std::int32_t> ids;
  std::vector<std::int32_t> lengths;
};

struct EncodedRecord {
  std::vector<EncodedText> texts;  // of each key
  std::string problem;             // not empty: why there are none
};

// May be used by many threads at once.
class RecordEncoder {
 public:
  // Both must outlive it. Error(kConfig) when the tokenizer lacks the token that is to be appended.
  RecordEncoder(const PreprocessConfig& config, const Tokenizer& tokenizer);

  // As Megatron's preprocess_data.py: a sentence without ids is left out, and the end-of-document
  // token is part of the last sentence of a document that has one.
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
