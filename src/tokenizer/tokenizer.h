// Tokenizer interface: text to token ids and back. Thread safe.
//
// Each invalid UTF-8 sequence is encoded as U+FFFD, as the reference libraries receive it from
// Python; only the byte tokenizer keeps raw bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/tiktoken_options.h"

namespace bev {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Recognises special tokens in the text; adds none.
  virtual std::vector<std::int32_t> encode(std::string_view text) const = 0;
  // Adds the special tokens that the model expects around a text, such as <s> or [CLS].
  virtual void add_special_tokens(std::vector<std::int32_t>& ids) const;

  // Special tokens are decoded to their text. Ids outside the vocabulary are skipped. The result
  // may end inside a UTF-8 character, where the reference has U+FFFD.
  virtual std::string decode(std::span<const std::int32_t> ids) const = 0;

  // Highest id plus one.
  virtual std::int64_t vocab_size() const = 0;
  // Lookup of a token as the vocabulary writes it.
  virtual std::optional<std::int32_t> token_id(std::string_view token) const = 0;
  virtual std::optional<std::string> token_text(std::int32_t id) const = 0;
  virtual bool is_special(std::int32_t id) const;
  // True if the text need not be UTF-8: every byte is a token.
  virtual bool takes_any_bytes() const { return false; }
  // End-of-document token, if there is one.
  virtual std::optional<std::int32_t> eod() const { return std::nullopt; }
};

// Tokenizer of a Hugging Face folder (tokenizer.json, tokenizer.model, vocab.json with merges.txt,
// vocab.txt or a tiktoken file), loaded as transformers does; nullptr if there is none. Throws
// Error(kInput) if it is invalid. `tiktoken` is as below.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& folder,
                                          const TiktokenOptions& tiktoken = {});

// Tokenizer by path: a folder as above, one of those files, GPT-2's two as "VOCAB+MERGES", or the
// names "byte" and "null:SIZE". A
// tiktoken file may be followed by its pattern's name, "FILE:cl100k_base". What `tiktoken` does not
// give follows from tokenizer_config.json in the file's folder (tiktoken_pattern,
// added_tokens_decoder), else from the file name. Throws Error(kInput) if there is none,
// Error(kConfig) if `tiktoken` is given for another kind of tokenizer.
std::unique_ptr<Tokenizer> open_tokenizer(const std::string& path,
                                          const TiktokenOptions& tiktoken = {});

// Files of a folder that load_tokenizer() reads as the rank file with these options: the ranks, and
// tokenizer_config.json with the pattern and special tokens. Throws Error(kConfig) if `path` is no
// rank file.
struct TokenizerFile {
  std::string name, content;
};
std::vector<TokenizerFile> rank_file_folder(const std::string& path,
                                            const TiktokenOptions& tiktoken);

}  // namespace bev
