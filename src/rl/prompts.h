// The prompts of a run: token ids, and the endless order in which they are taken.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "chat/chat_template.h"
#include "data/sft/json_rows.h"
#include "reward/row_file.h"
#include "tokenizer/tokenizer.h"

namespace bev {

struct Prompt {
  PromptRow row;
  std::string text;  // that the model sees
  TokenRow ids;
};

class PromptSet {
 public:
  // Encodes rows; lists of messages by the template, which may be null, texts as they are. Rows of
  // more than `longest` tokens are left out, with a warning. Throws Error(kInput) naming the row,
  // or if none is left.
  PromptSet(std::vector<PromptRow> rows, const Tokenizer& tokenizer,
            const ChatTemplate* chat_template, std::int64_t longest, std::uint64_t seed);

  std::int64_t size() const { return std::ssize(prompts_); }
  // The prompt at a place of the order, which permutes all of them anew in every epoch.
  const Prompt& at(std::int64_t place) const;

 private:
  std::vector<Prompt> prompts_;
  std::uint64_t seed_;
};

}  // namespace bev
