// Names that other programs (Hugging Face's Trainer, nanoGPT, DeepSpeed, Axolotl, vLLM) have for
// flags of this one.
#pragma once

#include <string>
#include <string_view>

namespace bev {

class FieldList;

// What to give instead of an unknown flag or key, as the end of a sentence; "" if no program is
// known to have it, or the list has nothing of its meaning. `dashes` go before flags: "--" or "".
std::string known_as(const FieldList& list, std::string_view name, std::string_view dashes);

}  // namespace bev
