#include "data/preprocess/preprocess_config.h"

#include <algorithm>

#include "base/fields.h"
#include "base/text.h"

namespace bev {

void PreprocessConfig::fields(FieldList& list) {
  list.section("preprocess");
  list.add(
      "input", input,
      "files, patterns in quotes ('*.jsonl.gz') or folders: JSON (.jsonl, .ndjson, .json with "
      "lines "
      "or an array), Parquet, or text; also compressed (.gz, .zst). Hidden and binary files of "
      "folders are left out");
  list.add("output-prefix", output_prefix,
           "start of the names to write: PREFIX_KEY_document.bin and .idx");
  list.add("tokenizer", tokenizer,
           "tokenizer.json, tokenizer.model, vocab.txt, a rank file (FILE:cl100k_base) or a folder "
           "with one of them; byte; null:SIZE");
  tiktoken.fields(list);
  list.add("append-eod", append_eod, "end every document with the end-of-document token");
  list.add("add-special-tokens", add_special_tokens,
           "add what the model expects around a text, such as <s> or [CLS]");
  list.add("split-sentences", split_sentences,
           "cut texts into sentences, as BERT needs them: PREFIX_KEY_sentence.bin and .idx");
  list.add("keep-newlines", keep_newlines, "sentences keep the white space behind them");
  list.add("workers", workers, "threads that tokenize; 0: all cores").min(0).limit(1024);
  list.add("partitions", partitions,
           "parts of the input, each kept when it is done, so that an interrupted run goes on with "
           "the next; 0: one for every 4 GiB")
      .min(0)
      .limit(1 << 16);
  text.fields(list);
  list.add(
          "txt-piece-bytes", text.piece_bytes,
          "cut a document that is a whole file at line ends into sequences of about so many bytes; "
          "0: one sequence")
      .min(0)
      .limit(kMostTextBytes);
}

std::vector<std::string> PreprocessConfig::problems() const {
  std::vector<std::string> out;
  if (input.empty()) out.push_back("--input: is missing; give files of text");
  if (output_prefix.empty()) out.push_back("--output-prefix: is missing; give the files' name");
  if (output_prefix.ends_with('/')) {
    out.push_back(concat("--output-prefix: ", output_prefix,
                         " is a folder; give the start of a name too, as in ", output_prefix,
                         "corpus"));
  }
  if (tokenizer.empty()) out.push_back("--tokenizer: is missing; give a file, a folder or a name");
  if (text.json_keys.empty()) out.push_back("--json-keys: is empty; give the key of the text");
  for (const std::string& key : text.json_keys) {
    if (std::ranges::count(text.json_keys, key) > 1) {
      out.push_back(concat("--json-keys: '", key, "' is given twice"));
      break;
    }
    if (key.find('/') != key.npos) {
      out.push_back(concat("--json-keys: '", key, "' cannot be part of a file's name"));
    }
  }
  if (keep_newlines && !split_sentences) {
    out.push_back("--keep-newlines: is for --split-sentences");
  }
  return out;
}

}  // namespace bev
