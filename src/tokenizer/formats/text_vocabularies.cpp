#include "tokenizer/formats/text_vocabularies.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/json_check.h"
#include "tokenizer/formats/tokenizer_json.h"
#include "tokenizer/text/utf8.h"

namespace bev {

namespace {

using Json = nlohmann::json;

// Calls visit(line, number) for each line of a file, without its line end.
template <class Visit>
void for_each_line(const std::string& path, Visit visit) {
  const std::string content = read_file(path);
  std::string_view text = content;
  for (std::size_t number = 1; !text.empty(); ++number) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (line.ends_with('\r')) line.remove_suffix(1);
    BEV_CHECK(is_valid_utf8(line), ErrorKind::kInput, path, ": line ", number, " ", quote(line),
              " is not UTF-8");
    visit(line, number);
  }
}

Json added_tokens(const Json& vocab, std::initializer_list<const char*> names) {
  Json tokens = Json::array();
  for (const char* name : names) {
    if (!vocab.contains(name)) continue;
    tokens.push_back({{"content", name}, {"special", true}, {"normalized", false}});
  }
  return tokens;
}

PipelineParts read_made_json(const Json& json, const std::string& source) {
  JsonDocument document(json.dump(), source);
  return read_tokenizer_json(document.root());
}

}  // namespace

std::optional<Gpt2Files> find_gpt2_files(const std::string& path) {
  for (std::size_t plus = path.find('+'); plus != path.npos; plus = path.find('+', plus + 1)) {
    Gpt2Files files{path.substr(0, plus), path.substr(plus + 1)};
    if (path_exists(files.vocab) && path_exists(files.merges)) return files;
  }
  return std::nullopt;
}

PipelineParts read_gpt2_files(const std::string& vocab, const std::string& merges) {
  Json pairs = Json::array();
  for_each_line(merges, [&](std::string_view line, std::size_t number) {
    if (line.empty() || (number == 1 && line.starts_with("#version"))) return;
    std::size_t space = line.find(' ');
    BEV_CHECK(space != line.npos, ErrorKind::kInput, merges, ": line ", number, " ", quote(line),
              " is not two tokens");
    pairs.push_back(Json::array({line.substr(0, space), line.substr(space + 1)}));
  });
  const Json words = Json::parse(read_json_object(vocab, 8));
  const Json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}};
  return read_made_json({{"model", {{"type", "BPE"}, {"vocab", words}, {"merges", pairs}}},
                         {"pre_tokenizer", byte_level},
                         {"decoder", byte_level},
                         {"added_tokens", added_tokens(words, {"<|endoftext|>"})}},
                        vocab);
}

PipelineParts read_bert_vocabulary(const std::string& path, bool lower_case) {
  Json vocab = Json::object();
  for_each_line(path, [&](std::string_view line, std::size_t number) {
    vocab[std::string(line)] = number - 1;
  });
  for (const char* token : {"[UNK]", "[CLS]", "[SEP]"}) {
    BEV_CHECK(vocab.contains(token), ErrorKind::kInput, path, ": ", token, " is missing");
  }
  const Json normalizer = {{"type", "BertNormalizer"},
                           {"clean_text", true},
                           {"handle_chinese_chars", true},
                           {"strip_accents", nullptr},
                           {"lowercase", lower_case}};
  const Json post_processor = {{"type", "BertProcessing"},
                               {"cls", Json::array({"[CLS]", vocab["[CLS]"]})},
                               {"sep", Json::array({"[SEP]", vocab["[SEP]"]})}};
  return read_made_json(
      {{"model", {{"type", "WordPiece"}, {"vocab", vocab}, {"unk_token", "[UNK]"}}},
       {"normalizer", normalizer},
       {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
       {"post_processor", post_processor},
       {"decoder", {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}}},
       {"added_tokens", added_tokens(vocab, {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"})}},
      path);
}

}  // namespace bev
