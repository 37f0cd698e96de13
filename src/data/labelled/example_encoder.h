// Tokens of examples: [CLS] text [SEP] pair [SEP] with the special tokens of the tokenizer, labels
// at the tokens that they are of, and where in the text tokens come from.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/batch.h"
#include "data/labelled/text_example.h"
#include "tokenizer/tokenizer.h"

namespace bev {

struct ExampleFormat {
  TextTask task = TextTask::kClasses;
  std::vector<std::string> labels;   // names, by number; for kClasses and kTags
  std::vector<double> weights = {};  // of classes in the loss; empty: 1
  std::int64_t max_length = 0;       // longer texts lose their end, the longer of a pair first
  std::int64_t token_types = 0;      // of the model; 0 and 1: all tokens have type 0
  bool double_separator = false;     // RoBERTa: two separators between the texts of a pair
};

struct EncodedExample {
  TokenSample sample;
  std::vector<std::int32_t> word_tokens;  // kTags: first token of each word; -1: cut off
  // kSpans: the tokens of the second text, and the bytes of it that each stands for.
  std::int32_t first_token = 0;
  std::vector<std::int32_t> begins, ends;
  bool answer_cut = false;  // kSpans: the answer was cut off
};

class ExampleEncoder {
 public:
  // The tokenizer must outlive it. Throws Error(kInput) if it adds no token before a text.
  ExampleEncoder(const Tokenizer& tokenizer, const ExampleFormat& format);

  const ExampleFormat& format() const { return format_; }
  // The fields of labels are there if the example has labels. Thread safe. Throws Error(kInput)
  // naming the line of a label that is none of the model's.
  EncodedExample encode(const TextExample& example) const;

 private:
  using Ids = std::vector<std::int32_t>;
  Ids encode_word(const std::string& word, bool first) const;
  std::int32_t label_of(const TextExample& example, const std::string& name) const;
  std::int64_t room(bool pair) const;
  TokenSample whole(const Ids& text, const Ids& pair, bool has_pair) const;
  void encode_texts(const TextExample& example, EncodedExample& out) const;
  void encode_tags(const TextExample& example, EncodedExample& out) const;
  void encode_spans(const TextExample& example, EncodedExample& out) const;

  const Tokenizer& tokenizer_;
  ExampleFormat format_;
  Ids begin_, end_;
};

}  // namespace bev
