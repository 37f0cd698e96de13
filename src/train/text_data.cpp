#include "train/text_data.h"

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "data/indexed/indexed_dataset.h"
#include "data/preprocess/preprocess_report.h"
#include "tokenizer/byte_tokenizer.h"
#include "tokenizer/formats/text_vocabularies.h"
#include "tokenizer/rank_file.h"

namespace bev {

namespace {

constexpr const char* kByteTokenizer = "byte";

// A text file is one document, split into about 128 sequences over all text, so that --split can
// divide it and epochs can shuffle it: enough for validation, with context within each.
std::int64_t piece_bytes(const std::vector<InputFile>& files) {
  constexpr std::int64_t kPieces = 128, kLeast = 256, kMost = 1 << 20;
  std::int64_t bytes = 0;
  for (const InputFile& file : files) bytes += file.bytes;
  return std::clamp(bytes / kPieces, kLeast, kMost);
}

}  // namespace

void take_vocabulary_files(DataConfig& config) {
  const std::string &vocab = config.vocab_file, &merges = config.merge_file;
  BEV_CHECK(merges.empty() || !vocab.empty(), ErrorKind::kConfig,
            "--vocab-file: is missing; --merge-file ", merges, " goes with it");
  if (vocab.empty()) return;
  BEV_CHECK(config.tokenizer.empty(), ErrorKind::kConfig, "--vocab-file: ", vocab,
            " and --tokenizer ", config.tokenizer, " both give the tokenizer; keep one");
  for (const std::string* file : {&vocab, &merges}) {
    BEV_CHECK(file->empty() || path_exists(*file), ErrorKind::kInput, *file, ": no such file");
  }
  config.tokenizer = merges.empty() ? vocab : concat(vocab, "+", merges);
  config.vocab_file = config.merge_file = "";
}

std::unique_ptr<Tokenizer> choose_tokenizer(DataConfig& config, const std::string& hf_model) {
  std::unique_ptr<Tokenizer> tokenizer;
  take_vocabulary_files(config);
  // Megatron's names for the pattern of its own vocabulary files, which scripts give in any case.
  bool megatron = config.tiktoken.pattern == "v1" || config.tiktoken.pattern == "v2";
  if (megatron && !find_rank_file(config.tokenizer)) config.tiktoken.pattern.clear();
  // Token files may use only a part of the vocabulary of the tokenizer.
  bool speaks = !config.text.empty() || !config.sft_data.empty() || config.preferences.any();
  bool decides = !config.tokenizer.empty() || speaks;
  if (!config.tokenizer.empty()) {
    tokenizer = open_tokenizer(config.tokenizer, config.tiktoken);
  } else if (!hf_model.empty() && (speaks || config.has_token_files())) {
    tokenizer = load_tokenizer(hf_model, config.tiktoken);
    if (tokenizer) config.tokenizer = hf_model;
  }
  if (!tokenizer && config.text.empty()) {
    BEV_CHECK(
        !config.tiktoken.given(), ErrorKind::kConfig,
        "--tokenizer: is missing; --tiktoken-pattern and --tiktoken-special-tokens say how to "
        "read its rank file");
    return nullptr;
  }
  if (!tokenizer) {
    config.tokenizer = kByteTokenizer;
    tokenizer = open_tokenizer(config.tokenizer, config.tiktoken);
  }
  if (decides) config.tokenizer_vocab_size = tokenizer->vocab_size();
  if (config.eod_id < 0) config.eod_id = tokenizer->eod().value_or(-1);
  return tokenizer;
}

bool prepare_text(DataConfig& config, const Tokenizer& tokenizer, const StopSignal& stop,
                  bool speaks) {
  PreprocessConfig work;
  work.input = config.text;
  work.tokenizer = config.tokenizer;
  work.tiktoken = config.tiktoken;
  work.text.json_keys = {config.text_key};
  work.append_eod = tokenizer.eod().has_value();
  work.text.piece_bytes = piece_bytes(list_inputs(work.input, work.text).files);
  PreprocessReport report(stop);
  if (!speaks) report.silence();
  std::string folder = config.data_cache_path.empty() ? "bevatron_cache" : config.data_cache_path;
  std::optional<std::string> prefix = preprocess_once(work, folder, tokenizer, report);
  if (!prefix) return false;
  IndexedDataset data(*prefix);
  BEV_CHECK(data.num_tokens() > 0, ErrorKind::kInput, "--text: no text in ",
            join(config.text, ", "));
  config.data_path = {*prefix};
  config.text.clear();
  return true;
}

std::vector<ExportFile> tokenizer_export_files(const std::string& tokenizer,
                                               const TiktokenOptions& tiktoken) {
  if (tiktoken.given()) {
    std::vector<ExportFile> files;
    if (!find_rank_file(tokenizer)) return files;  // it is gone
    for (TokenizerFile& file : rank_file_folder(tokenizer, tiktoken)) {
      files.push_back({std::move(file.name), std::move(file.content)});
    }
    return files;
  }
  if (tokenizer == kByteTokenizer) {
    return {{"tokenizer.json", byte_tokenizer_json()},
            {"tokenizer_config.json", byte_tokenizer_config_json()}};
  }
  if (is_directory(tokenizer)) {
    std::vector<ExportFile> files = companion_files(tokenizer);
    for (const std::string& name : list_directory(tokenizer)) {
      if (name.ends_with(".tiktoken"))
        files.push_back({name, read_file(join_path(tokenizer, name))});
    }
    return files;
  }
  std::string file = tokenizer, pattern;
  if (!path_exists(file)) {
    if (std::optional<Gpt2Files> files = find_gpt2_files(tokenizer)) {
      return {{"vocab.json", read_file(files->vocab)}, {"merges.txt", read_file(files->merges)}};
    }
    std::size_t colon = tokenizer.find_last_of(':');
    file = tokenizer.substr(0, colon);
    if (!path_exists(file)) return {};  // null:SIZE
    pattern = tokenizer.substr(colon + 1);
  }
  std::string folder = parent_path(file), name = file.substr(file.find_last_of('/') + 1);
  if (name.ends_with("merges.txt") || name.ends_with("vocab.json")) return companion_files(folder);
  if (!pattern.empty()) {
    name = pattern + ".tiktoken";  // the name identifies the pattern
  } else if (name.ends_with(".json")) {
    name = "tokenizer.json";
  } else if (name.ends_with(".txt")) {
    name = "vocab.txt";
  } else if (name.ends_with(".model")) {
    name = "tokenizer.model";
  }
  std::vector<ExportFile> files{{name, read_file(file)}};
  std::string settings = join_path(folder, "tokenizer_config.json");
  if (path_exists(settings)) files.push_back({"tokenizer_config.json", read_file(settings)});
  return files;
}

}  // namespace bev
