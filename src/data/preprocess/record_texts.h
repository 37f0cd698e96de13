// Extraction of the texts of a record, for all file formats.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/preprocess/json_record.h"
#include "data/preprocess/text_source.h"

namespace bev {

// Encoding required of plain text; JSON is always UTF-8.
enum class TextEncoding : std::uint8_t { kUtf8, kAnyBytes };

// Texts of each key; plain text counts as one key. Throws Error(kInput) if there are none.
std::vector<KeyTexts> record_texts(const Record& record, TextFormat format,
                                   std::span<const std::string> keys, TextEncoding encoding);

}  // namespace bev
