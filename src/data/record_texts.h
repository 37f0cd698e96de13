// The texts in a record, whatever the format of its file.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/json_record.h"
#include "data/text_source.h"

namespace bev {

// What plain text may be; JSON is always UTF-8.
enum class TextEncoding : std::uint8_t { kUtf8, kAnyBytes };

// For each key its texts; plain text has those of one key. Error(kInput) says why there are none.
std::vector<KeyTexts> record_texts(const Record& record, TextFormat format,
                                   std::span<const std::string> keys, TextEncoding encoding);

}  // namespace bev
