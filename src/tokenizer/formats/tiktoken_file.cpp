#include "tokenizer/formats/tiktoken_file.h"

#include <charconv>

#include "base/error.h"
#include "base/json_check.h"
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

}  // namespace

std::unique_ptr<Tokenizer> read_tiktoken_file(std::string_view text, std::string_view pattern,
                                              const std::string& source) {
  std::optional<std::string_view> expression = named_pattern(pattern);
  BEV_CHECK(expression.has_value(), ErrorKind::kInput, source, ": the pattern ", quote(pattern),
            " is not known");
  Ranks ranks = read_ranks(text, source);
  PipelineParts parts;
  parts.added = AddedTokens(special_tokens(pattern, ranks.bytes.size()));
  parts.splitter = find_splitter(*expression, RegexDialect::kFancy);
  BpeOptions options;
  options.bytes = options.whole_words = true;
  parts.model = std::make_unique<BpeModel>(std::move(ranks.texts), std::move(ranks.bytes),
                                           std::move(options));
  parts.decoder = make_byte_level_decoder();
  for (std::string_view name : {"<|endoftext|>", "<|end_of_text|>"}) {
    if (const AddedToken* token = parts.added.find(name)) parts.eod = token->id;
  }
  return std::make_unique<PipelineTokenizer>(std::move(parts));
}

}  // namespace bev
