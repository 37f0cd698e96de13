// JSON lines with a prompt in each: {"prompt": text or list of messages, "label" or "answer": text
// or number, ..}; for `reward` with "completion" too.
#pragma once

#include <string>
#include <vector>

namespace bev {

struct PromptRow {
  std::string where = {};       // "F.jsonl:12", for messages
  std::string id = {};          // as JSON; "" if there is none
  std::string prompt = {};      // a text, or the messages as JSON
  bool messages = false;        // the prompt is a list of messages
  std::string completion = {};  // a text, or the content of the last of its messages
  bool has_completion = false;
  std::string label = {};  // a text; what is none, as JSON
  bool has_label = false;
  std::string columns = {};  // the whole object, as JSON
};

// Rows of files in order. `label_key`: "" is "label", or else "answer". Throws Error(kInput) naming
// file and line if one is no object or has no prompt, or if there is none.
std::vector<PromptRow> read_prompt_rows(const std::vector<std::string>& files,
                                        const std::string& label_key);

}  // namespace bev
