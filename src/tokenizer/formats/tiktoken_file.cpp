#include "tokenizer/formats/tiktoken_file.h"

#include <charconv>
#include <map>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/json_check.h"
#include "tokenizer/formats/json_value.h"
#include "tokenizer/models/bpe_model.h"
#include "tokenizer/pipeline/byte_level.h"
#include "tokenizer/pipeline_tokenizer.h"
#include "tokenizer/text/base64.h"

namespace bev {

namespace {

struct Ranks {
  Vocabulary texts;  // as byte-to-unicode characters
  Vocabulary bytes;
};

Ranks read_ranks(std::string_view text, const std::string& source) {
  Ranks ranks;
  while (!text.empty()) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    std::size_t space = line.find(' ');
    std::string_view number = space == line.npos ? "" : line.substr(space + 1);
    std::int64_t rank = -1;
    auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), rank);
    BEV_CHECK(!number.empty() && error == std::errc() && end == number.data() + number.size(),
              ErrorKind::kInput, source, ": the line ", quote(line),
              " is not a token in base64 and its rank");
    std::string bytes = decode_base64(line.substr(0, space), source);
    ranks.texts.add(to_byte_level(bytes), rank, source);
    ranks.bytes.add(std::move(bytes), rank, source);
  }
  BEV_CHECK(!ranks.bytes.empty(), ErrorKind::kInput, source, ": no tokens");
  return ranks;
}

struct KnownSpecial {
  std::string_view pattern;
  std::int32_t ranks;  // number of ranks in the published file
  std::string_view token;
  std::int32_t id;
};

constexpr KnownSpecial kSpecials[] = {
    {"gpt2", 50256, "<|endoftext|>", 50256},
    {"r50k_base", 50256, "<|endoftext|>", 50256},
    {"p50k_base", 50280, "<|endoftext|>", 50256},
    {"p50k_edit", 50280, "<|endoftext|>", 50256},
    {"p50k_edit", 50280, "<|fim_prefix|>", 50281},
    {"p50k_edit", 50280, "<|fim_middle|>", 50282},
    {"p50k_edit", 50280, "<|fim_suffix|>", 50283},
    {"cl100k_base", 100256, "<|endoftext|>", 100257},
    {"cl100k_base", 100256, "<|fim_prefix|>", 100258},
    {"cl100k_base", 100256, "<|fim_middle|>", 100259},
    {"cl100k_base", 100256, "<|fim_suffix|>", 100260},
    {"cl100k_base", 100256, "<|endofprompt|>", 100276},
    {"o200k_base", 199998, "<|endoftext|>", 199999},
    {"o200k_base", 199998, "<|endofprompt|>", 200018},
    {"o200k_harmony", 199998, "<|startoftext|>", 199998},
    {"o200k_harmony", 199998, "<|endoftext|>", 199999},
    {"o200k_harmony", 199998, "<|return|>", 200002},
    {"o200k_harmony", 199998, "<|constrain|>", 200003},
    {"o200k_harmony", 199998, "<|channel|>", 200005},
    {"o200k_harmony", 199998, "<|start|>", 200006},
    {"o200k_harmony", 199998, "<|end|>", 200007},
    {"o200k_harmony", 199998, "<|message|>", 200008},
    {"o200k_harmony", 199998, "<|call|>", 200012},
    {"o200k_harmony", 199998, "<|endofprompt|>", 200018},
    {"llama3", 128000, "<|begin_of_text|>", 128000},
    {"llama3", 128000, "<|end_of_text|>", 128001},
    {"llama3", 128000, "<|start_header_id|>", 128006},
    {"llama3", 128000, "<|end_header_id|>", 128007},
    {"llama3", 128000, "<|eot_id|>", 128009},
    {"qwen2", 151643, "<|endoftext|>", 151643},
    {"qwen2", 151643, "<|im_start|>", 151644},
    {"qwen2", 151643, "<|im_end|>", 151645},
};

// Reserved special tokens with numbered names.
struct ReservedSpecials {
  std::string_view pattern;
  std::int32_t ranks;
  std::string_view name;  // before the number
  std::int32_t number;    // number of the first
  std::int32_t id;        // id of the first
  std::int32_t count;
};

constexpr ReservedSpecials kReserved[] = {
    {"o200k_harmony", 199998, "<|reserved_", 200000, 200000, 2},
    {"o200k_harmony", 199998, "<|reserved_", 200004, 200004, 1},
    {"o200k_harmony", 199998, "<|reserved_", 200009, 200009, 3},
    {"o200k_harmony", 199998, "<|reserved_", 200013, 200013, 1075},
    {"llama3", 128000, "<|reserved_special_token_", 0, 128002, 4},
    {"llama3", 128000, "<|reserved_special_token_", 4, 128008, 1},
    {"llama3", 128000, "<|reserved_special_token_", 5, 128010, 246},
    {"qwen2", 151643, "<|extra_", 0, 151646, 205},
};

AddedToken special_token(std::string text, std::int32_t id) {
  AddedToken token;
  token.content = token.shown = std::move(text);
  token.id = id;
  token.special = true;
  return token;
}

// Reserved tokens come first: an id with both names decodes to the reserved one, as in tiktoken.
std::vector<AddedToken> special_tokens(std::string_view pattern, std::size_t ranks) {
  std::vector<AddedToken> tokens;
  auto meant = [&](const auto& entry) {
    return entry.pattern == pattern && static_cast<std::size_t>(entry.ranks) == ranks;
  };
  for (const ReservedSpecials& range : kReserved) {
    for (std::int32_t i = 0; meant(range) && i < range.count; ++i) {
      tokens.push_back(special_token(concat(range.name, range.number + i, "|>"), range.id + i));
    }
  }
  for (const KnownSpecial& known : kSpecials) {
    if (meant(known)) tokens.push_back(special_token(std::string(known.token), known.id));
  }
  return tokens;
}

// Id of a special token that the user names.
std::int32_t special_id(const JsonValue& value, const std::string& token, const Vocabulary& ranks,
                        const std::string& path) {
  std::int64_t id = value.as_integer();
  BEV_CHECK(id >= 0 && id < kMostTokenIds, ErrorKind::kInput, path, ": the id ", id, " of ",
            quote(token), " is outside [0, ", kMostTokenIds, ")");
  BEV_CHECK(ranks.text(static_cast<std::int32_t>(id)) == nullptr, ErrorKind::kInput, path,
            ": the id ", id, " of ", quote(token), " is that of a rank; the first free one is ",
            ranks.end_id());
  return static_cast<std::int32_t>(id);
}

}  // namespace

std::string canonical_pattern(std::string_view pattern, const std::string& source) {
  for (std::string_view ending : {"", "_base"}) {
    std::string name = concat(pattern, ending);
    if (named_pattern(name)) return name;
  }
  // A plain word is not meant as an expression, which would match only that word.
  bool expression = pattern.find_first_of(R"(\[](){}|.*+?^$)") != pattern.npos;
  BEV_CHECK(expression, ErrorKind::kInput, source, ": the pattern ", quote(pattern),
            " is not known; give cl100k, o200k, gpt2, p50k, r50k, llama3, qwen2, o200k_harmony or "
            "a regular expression");
  return std::string(pattern);
}

std::vector<AddedToken> read_special_tokens(const std::string& path, std::string_view rank_file) {
  Vocabulary ranks = read_ranks(rank_file, path).bytes;
  JsonDocument document(read_file(path), path);
  std::vector<AddedToken> tokens;
  if (document.root().is_array()) {
    std::int32_t id = ranks.end_id();
    for (const JsonValue& token : document.root().items()) {
      tokens.push_back(special_token(token.as_text(), id++));
    }
  } else {
    BEV_CHECK(document.root().is_object(), ErrorKind::kInput, path,
              ": special tokens are an object {\"token\": id, ...} or a list of tokens");
    for (const auto& [token, id] : document.root().members()) {
      tokens.push_back(special_token(token, special_id(id, token, ranks, path)));
    }
  }
  std::map<std::int32_t, std::string> names;
  std::set<std::string> contents;
  for (const AddedToken& token : tokens) {
    BEV_CHECK(!token.content.empty(), ErrorKind::kInput, path, ": a special token is empty");
    auto [there, fresh] = names.emplace(token.id, token.content);
    BEV_CHECK(fresh && contents.insert(token.content).second, ErrorKind::kInput, path, ": ",
              quote(token.content), " and ", quote(there->second), " are the same or have the id ",
              token.id, " both");
  }
  return tokens;
}

std::unique_ptr<Tokenizer> read_tiktoken_file(std::string_view text,
                                              const RankFileSettings& settings,
                                              const std::string& source) {
  std::string pattern = canonical_pattern(settings.pattern, source);
  Ranks ranks = read_ranks(text, source);
  PipelineParts parts;
  parts.added = AddedTokens(settings.special_tokens ? *settings.special_tokens
                                                    : special_tokens(pattern, ranks.bytes.size()));
  if (std::optional<std::string_view> expression = named_pattern(pattern)) {
    parts.splitter = find_splitter(*expression, RegexDialect::kFancy);
  } else {
    try {
      parts.pre_tokenizer = make_regex_pre_tokenizer(pattern, RegexDialect::kFancy);
    } catch (const Error& error) {
      throw Error(concat(source, ": its pattern (--tiktoken-pattern): "), error);
    }
  }
  BpeOptions options;
  options.bytes = options.whole_words = true;
  parts.model = std::make_unique<BpeModel>(std::move(ranks.texts), std::move(ranks.bytes),
                                           std::move(options));
  parts.decoder = make_byte_level_decoder();
  const std::string eos = settings.eos_token.value_or("<|endoftext|>");
  for (std::string_view name : {std::string_view(eos), std::string_view("<|endoftext|>"),
                                std::string_view("<|end_of_text|>"), std::string_view("</s>")}) {
    const AddedToken* token = parts.added.find(name);
    if (token != nullptr && !parts.eod) parts.eod = token->id;
  }
  return std::make_unique<PipelineTokenizer>(std::move(parts));
}

}  // namespace bev
