// Configuration of `preprocess`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/preprocess/text_source.h"
#include "tokenizer/tiktoken_options.h"

namespace bev {

class FieldList;

struct PreprocessConfig {
  std::vector<std::string> input;
  TextOptions text;
  std::string output_prefix;
  std::string tokenizer;
  TiktokenOptions tiktoken;
  bool append_eod = false;
  bool add_special_tokens = false;
  bool split_sentences = false;
  bool keep_newlines = false;
  std::int64_t workers = 0;     // 0: all cores
  std::int64_t partitions = 0;  // 0: by size

  void fields(FieldList& list);
  std::vector<std::string> problems() const;
};

}  // namespace bev
