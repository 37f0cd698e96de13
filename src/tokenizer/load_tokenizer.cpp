// Detects the kind of tokenizer in a file or folder, and loads it.
#include <charconv>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "base/hub_id.h"
#include "base/json_check.h"
#include "base/text.h"
#include "tokenizer/byte_tokenizer.h"
#include "tokenizer/formats/text_vocabularies.h"
#include "tokenizer/formats/tokenizer_json.h"
#include "tokenizer/null_tokenizer.h"
#include "tokenizer/pipeline_tokenizer.h"
#include "tokenizer/rank_file.h"
#include "tokenizer/sentencepiece_tokenizer.h"
#include "tokenizer/tokenizer.h"

namespace bev {

namespace {

// tokenizer_config.json of the folder; nullopt if there is none.
std::optional<JsonDocument> read_config(const std::string& folder) {
  std::string path = join_path(folder, "tokenizer_config.json");
  if (!path_exists(path)) return std::nullopt;
  return JsonDocument(mark_python_numbers(read_file(path)), path);
}

// A token of the configuration: a string, or an object with "content".
std::optional<std::string> config_token(const JsonValue& config, std::string_view key) {
  JsonValue value = config[key];
  if (value.is_object()) return value.text("content");
  return value.is_string() ? std::optional(value.as_text()) : std::nullopt;
}

// End-of-document token: the configuration's eos_token, or a usual name.
std::optional<std::int32_t> find_eod(const PipelineParts& parts,
                                     const std::optional<JsonDocument>& config) {
  auto id_of = [&](std::string_view token) -> std::optional<std::int32_t> {
    if (const AddedToken* added = parts.added.find(token)) return added->id;
    return parts.model->vocabulary().find(token);
  };
  if (config) {
    if (auto name = config_token(config->root(), "eos_token")) return id_of(*name);
  }
  for (std::string_view name : {"<|endoftext|>", "<|end_of_text|>", "</s>", "[SEP]"}) {
    if (std::optional<std::int32_t> id = id_of(name)) return id;
  }
  return std::nullopt;
}

std::unique_ptr<Tokenizer> finish(PipelineParts parts, const std::string& folder) {
  std::optional<JsonDocument> config = read_config(folder);
  parts.eod = find_eod(parts, config);
  return std::make_unique<PipelineTokenizer>(std::move(parts));
}

// Normalizer, pre-tokenizer and decoder that transformers' LlamaTokenizer substitutes for the
// file's own.
std::string llama_pipeline(const JsonValue& config) {
  bool prefix = config.flag("add_prefix_space").value_or(true);
  const char* scheme = !prefix                                 ? "never"
                       : config.flag("legacy").value_or(false) ? "always"
                                                               : "first";
  return concat(
      R"({"normalizer": null, "pre_tokenizer": {"type": "Metaspace", "replacement": "▁",)",
      R"( "split": false, "prepend_scheme": ")", scheme,
      R"("}, "decoder": {"type": "Sequence", "decoders": [{"type": "Replace",)",
      R"( "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"})",
      prefix ? R"(, {"type": "Strip", "content": " ", "start": 1, "stop": 0})" : "", "]}}");
}

// True if transformers would load the folder with LlamaTokenizer: the configuration says so, the
// tokenizer is not byte-level, and the model type has no other class.
bool is_llama_folder(const std::string& folder, const JsonValue& root, const JsonValue& config) {
  std::optional<std::string> name = config.text("tokenizer_class");
  if (name != "LlamaTokenizer" && name != "LlamaTokenizerFast") return false;
  if (root["model"]["merges"].is_null() || ends_in_byte_level(root["pre_tokenizer"])) return false;
  std::string model_config = join_path(folder, "config.json");
  if (!path_exists(model_config)) return true;
  return JsonDocument(read_file(model_config), model_config).root().text("model_type") == "llama";
}

// A single file is loaded as the tokenizers library does, a folder as transformers does.
enum class Reading : std::uint8_t { kFile, kFolder };

std::unique_ptr<Tokenizer> read_json_file(const std::string& path, Reading reading) {
  std::string text = read_file(path);
  if (is_byte_tokenizer(text, path)) return std::make_unique<ByteTokenizer>();
  JsonDocument document(text, path);
  std::string folder = parent_path(path);
  std::optional<JsonDocument> config = read_config(folder), pipeline;
  if (config && reading == Reading::kFolder &&
      is_llama_folder(folder, document.root(), config->root())) {
    pipeline.emplace(llama_pipeline(config->root()), path);
  }
  PipelineParts parts = pipeline ? read_tokenizer_json(document.root(), pipeline->root())
                                 : read_tokenizer_json(document.root());
  // The clean-up is meant for WordPiece; the reference does not apply it to BPE, whose text it
  // would change.
  bool bpe = !document.root()["model"]["merges"].is_null();
  if (config && !bpe) {
    parts.clean_up_spaces = config->root().flag("clean_up_tokenization_spaces").value_or(false);
  }
  parts.eod = find_eod(parts, config);
  return std::make_unique<PipelineTokenizer>(std::move(parts));
}

std::unique_ptr<Tokenizer> read_sentencepiece(const std::string& path) {
  SentencePieceSpecials specials;
  if (std::optional<JsonDocument> config = read_config(parent_path(path))) {
    specials.begin = config->root().flag("add_bos_token").value_or(specials.begin);
    specials.end = config->root().flag("add_eos_token").value_or(specials.end);
  }
  return std::make_unique<SentencePieceTokenizer>(read_sentencepiece_file(read_file(path), path),
                                                  specials, path);
}

void refuse_tiktoken(const TiktokenOptions& tiktoken, const std::string& path) {
  BEV_CHECK(!tiktoken.given(), ErrorKind::kConfig,
            tiktoken.pattern.empty() ? "--tiktoken-special-tokens" : "--tiktoken-pattern",
            ": is for rank files, and the tokenizer ", path, " is none; leave the flag out");
}

std::unique_ptr<Tokenizer> read_model_file(const std::string& path,
                                           const TiktokenOptions& tiktoken) {
  if (is_rank_file(path)) return open_rank_file({path, ""}, tiktoken);
  refuse_tiktoken(tiktoken, path);
  return read_sentencepiece(path);
}

std::unique_ptr<Tokenizer> read_gpt2_folder(const std::string& folder) {
  return finish(read_gpt2_files(join_path(folder, "vocab.json"), join_path(folder, "merges.txt")),
                folder);
}

std::unique_ptr<Tokenizer> read_bert_file(const std::string& path) {
  std::string folder = parent_path(path);
  std::optional<JsonDocument> config = read_config(folder);
  bool lower = !config || config->root().flag("do_lower_case").value_or(true);
  return finish(read_bert_vocabulary(path, lower), folder);
}

std::unique_ptr<Tokenizer> read_file_by_name(const std::string& path,
                                             const TiktokenOptions& tiktoken) {
  bool model = !path.ends_with(".json") && !path.ends_with(".txt");
  if (model || (tiktoken.given() && is_rank_file(path))) return read_model_file(path, tiktoken);
  refuse_tiktoken(tiktoken, path);
  if (path.ends_with("merges.txt") || path.ends_with("vocab.json")) {
    return read_gpt2_folder(parent_path(path));
  }
  return path.ends_with(".json") ? read_json_file(path, Reading::kFile) : read_bert_file(path);
}

std::unique_ptr<Tokenizer> make_null(std::string_view size_text) {
  std::int64_t size = 0;
  auto [end, error] = std::from_chars(size_text.data(), size_text.data() + size_text.size(), size);
  BEV_CHECK(error == std::errc() && end == size_text.data() + size_text.size() && size > 0 &&
                size < (std::int64_t{1} << 31) - 1,
            ErrorKind::kConfig, "tokenizer null:", size_text,
            ": give the number of ids, as in null:32000");
  return std::make_unique<NullTokenizer>(size);
}

}  // namespace

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& folder,
                                          const TiktokenOptions& tiktoken) {
  // A folder may hold the ranks and their conversion to tokenizer.json.
  std::optional<RankFile> ranks = find_rank_file(folder);
  auto file = [&](const char* name) { return join_path(folder, name); };
  if (ranks && tiktoken.given()) return open_rank_file(*ranks, tiktoken);
  if (is_directory(folder)) refuse_tiktoken(tiktoken, folder);
  if (path_exists(file("tokenizer.json")))
    return read_json_file(file("tokenizer.json"), Reading::kFolder);
  for (const char* name : {"tokenizer.model", "spiece.model", "sentencepiece.bpe.model"}) {
    if (path_exists(file(name))) return read_model_file(file(name), tiktoken);
  }
  if (path_exists(file("vocab.json")) && path_exists(file("merges.txt"))) {
    return read_gpt2_folder(folder);
  }
  if (path_exists(file("vocab.txt"))) return read_bert_file(file("vocab.txt"));
  return ranks ? open_rank_file(*ranks, tiktoken) : nullptr;
}

std::unique_ptr<Tokenizer> open_tokenizer(const std::string& path,
                                          const TiktokenOptions& tiktoken) {
  if (path == "byte" || path.starts_with("null:")) refuse_tiktoken(tiktoken, path);
  if (path == "byte") return std::make_unique<ByteTokenizer>();
  if (path.starts_with("null:")) return make_null(std::string_view(path).substr(5));
  if (is_directory(path)) {
    std::unique_ptr<Tokenizer> found = load_tokenizer(path, tiktoken);
    BEV_CHECK(found != nullptr, ErrorKind::kInput, path,
              ": no tokenizer.json, tokenizer.model, vocab.json with merges.txt, vocab.txt or "
              ".tiktoken file");
    return found;
  }
  if (path_exists(path)) return read_file_by_name(path, tiktoken);
  if (std::optional<Gpt2Files> files = find_gpt2_files(path)) {
    refuse_tiktoken(tiktoken, path);
    return finish(read_gpt2_files(files->vocab, files->merges), parent_path(files->vocab));
  }
  std::optional<RankFile> ranks = find_rank_file(path);
  BEV_CHECK(ranks, ErrorKind::kInput, path, ": no such file or folder", hub_hint(path));
  return open_rank_file(*ranks, tiktoken);
}

}  // namespace bev
