#include "data/preprocess/record_texts.h"

#include "base/error.h"
#include "tokenizer/text/utf8.h"

namespace bev {

std::vector<KeyTexts> record_texts(const Record& record, TextFormat format,
                                   std::span<const std::string> keys, TextEncoding encoding) {
  BEV_CHECK(record.problem.empty(), ErrorKind::kInput, record.problem);
  if (format != TextFormat::kText) return read_json_record(record.text, keys);
  BEV_CHECK(encoding == TextEncoding::kAnyBytes || is_valid_utf8(record.text), ErrorKind::kInput,
            "the text is not UTF-8; convert it, or let bytes be the tokens (--tokenizer byte)");
  return {{record.text}};
}

}  // namespace bev
