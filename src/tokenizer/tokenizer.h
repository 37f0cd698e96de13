// Text to token ids and back. Tokenizers may be used by many threads at once.
//
// Text that is not UTF-8 is encoded as if U+FFFD stood for each stretch that is not, as the
// reference libraries get it from Python; only the byte tokenizer keeps bytes as they are.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace bev {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Special tokens in the text are recognised; none are added.
  virtual std::vector<std::int32_t> encode(std::string_view text) const = 0;
  // Puts the tokens around the ids of a text that its model expects, such as <s> or [CLS].
  virtual void add_special_tokens(std::vector<std::int32_t>& ids) const;

  // Special tokens are shown as text. Ids that are not in the vocabulary give nothing. The result
  // need not be valid UTF-8: a character may be cut; the reference's text has U+FFFD there.
  virtual std::string decode(std::span<const std::int32_t> ids) const = 0;

  // One more than the highest id.
  virtual std::int64_t vocab_size() const = 0;
  // A token as the vocabulary writes it.
  virtual std::optional<std::int32_t> token_id(std::string_view token) const = 0;
  virtual std::optional<std::string> token_text(std::int32_t id) const = 0;
  virtual bool is_special(std::int32_t id) const;
  // Whether text need not be UTF-8: every byte is a token.
  virtual bool takes_any_bytes() const { return false; }
  // The end-of-document token, if there is one.
  virtual std::optional<std::int32_t> eod() const { return std::nullopt; }
};

// The tokenizer of a Hugging Face folder (tokenizer.json, tokenizer.model, vocab.json with
// merges.txt, vocab.txt or a tiktoken file), as transformers reads it; nullptr when there is none.
// Error(kInput) when it is broken.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& folder);

// The tokenizer that a path means: a folder as above, one of those files, or the names "byte" and
// "null:SIZE". A tiktoken file may be followed by its pattern's name: "FILE:cl100k_base"; by
// default its own name says which. Error(kInput) when there is none.
std::unique_ptr<Tokenizer> open_tokenizer(const std::string& path);

}  // namespace bev
