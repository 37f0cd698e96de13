// Tokenizer pipeline of Hugging Face's tokenizers library: added tokens, normalizer, pre-tokenizer,
// model, post-processor and decoder.
#pragma once

#include <memory>
#include <optional>

#include "tokenizer/models/word_cache.h"
#include "tokenizer/models/word_model.h"
#include "tokenizer/pipeline/added_tokens.h"
#include "tokenizer/pipeline/decoder.h"
#include "tokenizer/pipeline/normalizer.h"
#include "tokenizer/pipeline/post_processor.h"
#include "tokenizer/pipeline/pre_tokenizer.h"
#include "tokenizer/pipeline/splitters.h"
#include "tokenizer/tokenizer.h"

namespace bev {

struct PipelineParts {
  AddedTokens added{{}};
  std::unique_ptr<Normalizer> normalizer;       // nullptr: none
  std::unique_ptr<PreTokenizer> pre_tokenizer;  // nullptr: the text is one word
  std::optional<Splitter> splitter;             // replaces the pre-tokenizer if it is equivalent
  std::unique_ptr<WordModel> model;
  PostProcessor post_processor;
  std::unique_ptr<Decoder> decoder;  // nullptr: tokens are joined by spaces
  bool clean_up_spaces = false;      // clean_up_tokenization_spaces, after decoding
  std::optional<std::int32_t> eod;
};

class PipelineTokenizer : public Tokenizer {
 public:
  explicit PipelineTokenizer(PipelineParts parts);
  ~PipelineTokenizer() override;

  std::vector<std::int32_t> encode(std::string_view text) const override;
  void add_special_tokens(std::vector<std::int32_t>& ids) const override;
  std::string decode(std::span<const std::int32_t> ids) const override;
  std::int64_t vocab_size() const override { return vocab_size_; }
  std::optional<std::int32_t> token_id(std::string_view token) const override;
  std::optional<std::string> token_text(std::int32_t id) const override;
  bool is_special(std::int32_t id) const override;
  std::optional<std::int32_t> eod() const override { return parts_.eod; }

 private:
  struct Memory;  // working memory of one call
  class Pool;

  void encode_plain(std::string_view text, bool first, Memory& memory,
                    std::vector<std::int32_t>& ids) const;
  void encode_words(std::string_view text, std::size_t origin, Memory& memory,
                    std::vector<std::int32_t>& ids) const;
  template <class NextWord>
  void encode_in_groups(NextWord next_word, Memory& memory, std::vector<std::int32_t>& ids) const;
  void encode_word(std::string_view word, const WordCache::Key& key, Memory& memory,
                   std::vector<std::int32_t>& ids) const;

  PipelineParts parts_;
  std::int64_t vocab_size_;
  std::unique_ptr<Pool> pool_;
};

}  // namespace bev
