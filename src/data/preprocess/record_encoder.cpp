#include "data/preprocess/record_encoder.h"

#include "base/error.h"
#include "data/preprocess/record_texts.h"
#include "data/preprocess/sentence_splitter.h"

namespace bev {

RecordEncoder::RecordEncoder(const PreprocessConfig& config, const Tokenizer& tokenizer)
    : config_(config),
      tokenizer_(tokenizer),
      encoding_(tokenizer.takes_any_bytes() && !config.split_sentences ? TextEncoding::kAnyBytes
                                                                       : TextEncoding::kUtf8) {
  if (!config.append_eod) return;
  eod_ = tokenizer.eod();
  BEV_CHECK(eod_, ErrorKind::kConfig, "--append-eod: the tokenizer ", config.tokenizer,
            " has no end-of-document token; name one as eos_token in its tokenizer_config.json, or "
            "leave the flag out");
}

void RecordEncoder::append(std::string_view sentence, EncodedText& out) const {
  std::vector<std::int32_t> ids = tokenizer_.encode(sentence);
  if (config_.add_special_tokens) tokenizer_.add_special_tokens(ids);
  if (ids.empty()) return;
  out.lengths.push_back(static_cast<std::int32_t>(ids.size()));
  if (out.ids.empty()) {
    out.ids = std::move(ids);
  } else {
    out.ids.insert(out.ids.end(), ids.begin(), ids.end());
  }
}

EncodedText RecordEncoder::encode_document(const std::vector<std::string>& texts,
                                           bool ends_document) const {
  EncodedText out;
  for (const std::string& text : texts) {
    if (!config_.split_sentences) {
      append(text, out);
      continue;
    }
    SentenceSpace space = config_.keep_newlines ? SentenceSpace::kKept : SentenceSpace::kDropped;
    for (std::string_view sentence : split_sentences(text, space)) append(sentence, out);
  }
  if (eod_ && ends_document && !out.ids.empty()) {
    out.ids.push_back(*eod_);
    ++out.lengths.back();
  }
  return out;
}

EncodedRecord RecordEncoder::encode(const Record& record, TextFormat format) const {
  EncodedRecord out;
  try {
    for (const KeyTexts& texts : record_texts(record, format, config_.text.json_keys, encoding_)) {
      out.texts.push_back(encode_document(texts, record.ends_document));
    }
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kInput) throw;
    out.texts.clear();
    out.problem = error.what();
  }
  return out;
}

}  // namespace bev
