#include "tokenizer/tiktoken_options.h"

#include "base/fields.h"

namespace bev {

void TiktokenOptions::fields(FieldList& list) {
  list.add("tiktoken-pattern", pattern,
           "how a rank file's text is cut into words: cl100k, o200k, gpt2, llama3, qwen2, another "
           "of tiktoken's names or a regular expression")
      .defaults_to("by the file's name; else llama3");
  list.add("tiktoken-special-tokens", special_tokens,
           "JSON file with the special tokens of a rank file: {\"<|endoftext|>\": 100257, ...}, or "
           "a list of tokens, whose ids follow the ranks")
      .defaults_to("those of the pattern, for a published file");
}

}  // namespace bev
