// Preferences from objects of JSON, in TRL's layouts: {"prompt", "chosen", "rejected"}, the same
// with the prompt as the common beginning of both answers, and {"prompt", "completion", "label"};
// texts, or lists of messages.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "chat/chat_template.h"
#include "chat/jinja/value.h"
#include "data/preference/preference_sample.h"
#include "tokenizer/tokenizer.h"

namespace bev {

enum class PreferenceKind : std::uint8_t { kPair, kLabelled };

struct PreferenceRow {
  // Texts or lists of messages, all alike.
  jinja::Value prompt;
  std::vector<jinja::Value> answers;  // chosen and rejected, or one completion
  bool desirable = true;
  jinja::Value tools;  // None if absent
  std::optional<double> ref_chosen_logps, ref_rejected_logps, margin;

  bool conversational() const { return prompt.is_sequence(); }
};

// Parses one object. Throws Error(kInput) naming `source` (file and line) if something is missing,
// empty, or in the wrong order of roles.
PreferenceRow read_preference_row(std::string_view line, const std::string& source,
                                  PreferenceKind kind);
// The keys of an object that are looked at.
std::vector<std::string> preference_row_keys();

// A row as token ids. The completions begin where the ids of prompt and answer leave those of the
// prompt alone; `diverges`: that is before the end of the prompt, which is cut there.
struct PreferenceTokens {
  TokenRow prompt;
  std::vector<TokenRow> answers;
  bool desirable = true, diverges = false, alike = false;
  std::optional<double> ref_chosen_logps, ref_rejected_logps, margin;
};
// Texts end with the end token unless they do already. `chat_template` may be null for texts.
// Throws Error(kInput) without a place.
PreferenceTokens encode_preference_row(const PreferenceRow& row, const ChatTemplate* chat_template,
                                       const Tokenizer& tokenizer);

}  // namespace bev
