// Sentences of a text by rules. Not NLTK's Punkt, which learns its abbreviations: docs/data.md says
// how the two differ.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace bev {

// White space around sentences: left out, or kept with the sentence before it, so that all of them
// together are the text.
enum class SentenceSpace : std::uint8_t { kDropped, kKept };

// The sentences of a text in UTF-8, in order; none is empty.
std::vector<std::string_view> split_sentences(std::string_view text, SentenceSpace space);

}  // namespace bev
