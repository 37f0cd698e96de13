#include "app/generation_options.h"

#include <bit>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "app/options.h"
#include "base/error.h"
#include "base/fields.h"
#include "base/file.h"
#include "base/json_check.h"
#include "base/log.h"
#include "infer/end_tokens.h"
#include "infer/engine.h"

namespace bev {

namespace {

constexpr std::int64_t kMostTokens = std::int64_t{1} << 24, kMostIds = std::int64_t{1} << 28;

std::vector<LogitEdit> read_logit_bias(const std::string& path) {
  const std::string text = mark_python_numbers(read_file(path));
  constexpr int kMaxDepth = 4;
  check_json(text, path, kMaxDepth);
  const nlohmann::json object = nlohmann::json::parse(text);
  BEV_CHECK(object.is_object(), ErrorKind::kInput, "--logit-bias: ", path,
            " is not a JSON object {\"token id\": bias}");
  std::vector<LogitEdit> edits;
  for (const auto& [key, value] : object.items()) {
    std::size_t used = 0;
    std::int64_t token = -1;
    try {
      token = std::stoll(key, &used);
    } catch (const std::exception&) {
      used = 0;
    }
    bool fits = used == key.size() && !key.empty() && token >= 0 &&
                token <= std::numeric_limits<std::int32_t>::max();
    BEV_CHECK(fits && value.is_number(), ErrorKind::kInput, "--logit-bias: ", path, ": ",
              quote(key, 40), ": ", quote(value.dump(-1, ' ', true), 40),
              " is not a token id with a number");
    edits.push_back({static_cast<std::int32_t>(token), value.get<float>()});
  }
  return edits;
}

}  // namespace

void add_sampling_fields(FieldList& list, SamplingOptions& sampling) {
  list.add("temperature", sampling.temperature, "divides the logits; 0: always the likeliest token")
      .min(0);
  list.add("top-k", sampling.top_k, "choose among so many likeliest tokens; 0: all")
      .min(0)
      .limit(kMostIds);
  list.add("top-p", sampling.top_p,
           "choose among the likeliest tokens that make up this probability")
      .above(0)
      .max(1);
  list.add("min-p", sampling.min_p,
           "choose among tokens with at least this fraction of the largest probability")
      .min(0)
      .max(1);
  list.add("repetition-penalty", sampling.repetition_penalty,
           "above 1: tokens of prompt and output become less likely (logits divided, or multiplied "
           "below 0)")
      .above(0);
  list.add("presence-penalty", sampling.presence_penalty,
           "subtracted from the logits of tokens in the output");
  list.add("frequency-penalty", sampling.frequency_penalty,
           "subtracted from the logits of tokens in the output for each occurrence");
}

void GenerationFlags::fields(FieldList& list) {
  list.add("max-new-tokens", max_new_tokens, "tokens to add")
      .min(0)
      .limit(kMostTokens)
      .defaults_to("64; with --chat 1024, as far as the model has positions");
  list.add("min-new-tokens", min_new_tokens, "end no sequence before so many tokens")
      .min(0)
      .limit(kMostTokens);
  add_sampling_fields(list, sampling);
  list.add("logit-bias", logit_bias, "JSON file {\"token id\": number to add to its logit, ...}");
  list.add("stop", stop, "text that ends a sequence; the text before it is the result");
  list.add("stop-token-ids", stop_token_ids, "token ids that end a sequence, besides the model's");
  list.add("ignore-eos", ignore_eos, "go on after the end-of-sequence token");
  list.add("n", n, "sequences for each prompt").min(1).limit(1 << 12);
  list.add("num-beams", num_beams, "beam search with so many beams, by Hugging Face's rules")
      .min(1)
      .limit(1 << 10);
  list.add("num-return-sequences", num_return_sequences, "best beams to return")
      .min(1)
      .limit(1 << 10);
  list.add("length-penalty", length_penalty,
           "beams are ranked by log-probability / length to this power");
  list.add("early-stopping", early_stopping,
           {{"false", EarlyStopping::kFalse},
            {"true", EarlyStopping::kTrue},
            {"never", EarlyStopping::kNever}},
           "when beam search ends: once no beam is likely to become better, with the first "
           "--num-beams finished ones, or once none can");
  list.add("no-repeat-ngram-size", no_repeat_ngram_size,
           "no sequence of so many tokens occurs twice; 0: any may")
      .min(0)
      .limit(1 << 16);
  list.add("forced-bos-token-id", forced_bos_token_id,
           "token that follows a prompt of a single token")
      .min(-1)
      .limit(kMostIds)
      .defaults_to("that of the model's config.json, if there is one");
  list.add("forced-eos-token-id", forced_eos_token_id, "token at the place --max-new-tokens")
      .min(-1)
      .limit(kMostIds)
      .defaults_to("that of the model's config.json, if there is one");
}

std::vector<std::string> GenerationFlags::problems() const {
  std::vector<std::string> out;
  if (min_new_tokens > max_new_tokens) {
    out.push_back(concat("--min-new-tokens: ", min_new_tokens, " is above --max-new-tokens ",
                         max_new_tokens));
  }
  if (beams() && n > 1) {
    out.push_back("--n: is for sampling; with --num-beams give --num-return-sequences");
  }
  if (beams() && sampling.temperature > 0) {
    out.push_back("--num-beams: beam search is greedy; leave out --temperature");
  }
  if (beams() && !stop.empty()) {
    out.push_back("--stop: does not go with --num-beams; give --stop-token-ids");
  }
  if (beams() && (sampling.presence_penalty != 0 || sampling.frequency_penalty != 0)) {
    out.push_back(
        "--num-beams: takes --repetition-penalty, but neither --presence-penalty nor "
        "--frequency-penalty");
  }
  if (num_return_sequences > num_beams) {
    out.push_back(concat("--num-return-sequences: ", num_return_sequences, " of --num-beams ",
                         num_beams, "; give at most as many, or --n for sampling"));
  }
  return out;
}

void GenerationFlags::warn(const Options& options) const {
  if (sampling.temperature > 0) return;
  for (const char* flag : {"top-k", "top-p", "min-p"}) {
    if (!options.given(flag)) continue;
    log_warning(concat("--", flag,
                       ": has no effect at --temperature 0, which always takes the "
                       "likeliest token; give --temperature 1, say, or leave it out"));
  }
  if (n > 1) log_warning("--n: all sequences of a prompt are equal at --temperature 0");
}

Request GenerationFlags::request(const std::string& files, std::uint64_t seed) const {
  Request request;
  request.max_new_tokens = max_new_tokens;
  request.min_new_tokens = min_new_tokens;
  request.sampling = sampling;
  request.sampling.seed = seed;
  if (!logit_bias.empty()) request.sampling.logit_bias = read_logit_bias(logit_bias);
  request.ignore_end = ignore_eos;
  if (!files.empty()) request.end_tokens = read_end_tokens(files);
  for (std::int64_t token : stop_token_ids) {
    request.stop_tokens.push_back(static_cast<std::int32_t>(token));
  }
  if (!stop.empty()) request.stop = {stop};
  request.n = n;
  request.rules.no_repeat_ngram_size = no_repeat_ngram_size;
  auto forced = [&](std::int64_t given, const char* key) {
    if (given >= 0) return static_cast<std::int32_t>(given);
    return files.empty() ? -1 : read_token_id(files, key);
  };
  request.rules.forced_bos_token = forced(forced_bos_token_id, "forced_bos_token_id");
  request.rules.forced_eos_token = forced(forced_eos_token_id, "forced_eos_token_id");
  if (!beams()) return request;
  request.beams = BeamOptions{.num_beams = num_beams,
                              .num_return_sequences = num_return_sequences,
                              .length_penalty = length_penalty,
                              .early_stopping = early_stopping};
  return request;
}

void EngineFlags::fields(FieldList& list) {
  list.section("engine");
  list.add("max-seqs", max_seqs, "most sequences computed at a time; others wait")
      .min(1)
      .limit(1 << 16);
  list.add("max-step-tokens", max_step_tokens,
           "most tokens computed in a step; longer prompts are computed in several")
      .min(1)
      .limit(1 << 24);
  list.add("block-tokens", block_tokens, "tokens in a block of the KV cache; a power of two")
      .min(1)
      .limit(1 << 16);
  list.add("kv-cache-tokens", kv_cache_tokens, "tokens that the KV cache has room for")
      .min(0)
      .defaults_to("what the requests need, as far as there is memory");
  list.add("prefix-cache", prefix_cache, "compute equal beginnings of prompts once");
}

std::vector<std::string> EngineFlags::problems() const {
  if (std::has_single_bit(static_cast<std::uint64_t>(block_tokens))) return {};
  return {concat("--block-tokens: ", block_tokens, " is not a power of two")};
}

InferenceOptions EngineFlags::options() const {
  InferenceOptions options;
  options.max_sequences = max_seqs;
  options.max_step_tokens = max_step_tokens;
  options.block_tokens = block_tokens;
  options.kv_cache_tokens = kv_cache_tokens;
  options.prefix_cache = prefix_cache;
  return options;
}

}  // namespace bev
