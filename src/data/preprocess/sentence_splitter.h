// Rule-based sentence splitter. Not NLTK's Punkt, which learns its abbreviations; docs/data.md
// describes the differences.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace bev {

// White space around sentences: dropped, or kept with the preceding sentence, so that the
// concatenation is the text.
enum class SentenceSpace : std::uint8_t { kDropped, kKept };

// Sentences of a UTF-8 text, in order; none is empty.
std::vector<std::string_view> split_sentences(std::string_view text, SentenceSpace space);

}  // namespace bev
