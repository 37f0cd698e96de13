#include "app/masked_samples.h"

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "app/options.h"
#include "base/error.h"
#include "base/fields.h"
#include "data/masked/masked_blend.h"
#include "tokenizer/tokenizer.h"
#include "train/masked_data.h"
#include "train/token_files.h"

namespace bev {

namespace {

using Json = nlohmann::json;

Json to_json(const SentenceIndex& index) {
  Json out = Json::array();
  for (std::int64_t i = 0; i < index.num_samples(); ++i) {
    SentenceSample sample = index.sample(i);
    out.push_back({sample.first, sample.first + sample.sentences, sample.target_length});
  }
  return out;
}

Json to_json(const BertSample& sample) {
  return {{"text", sample.tokens},
          {"types", sample.types},
          {"labels", sample.labels},
          {"is_random", sample.is_random ? 1 : 0},
          {"padding_mask", sample.padding_mask},
          {"loss_mask", sample.loss_mask},
          {"truncated", sample.truncated ? 1 : 0}};
}

Json to_json(const T5Sample& sample) {
  return {{"text_enc", sample.encoder_tokens},
          {"text_dec", sample.decoder_tokens},
          {"labels", sample.labels},
          {"loss_mask", sample.loss_mask},
          {"enc_mask", sample.encoder_mask},
          {"dec_mask", sample.decoder_mask},
          {"truncated", sample.truncated ? 1 : 0}};
}

template <class Member>
Json to_json(const MaskedBlend<Member>& data, std::int64_t dump) {
  Json out{{"num_samples", data.num_samples()}, {"samples", Json::array()}};
  if (const std::optional<BlendIndex>& blend = data.blend()) {
    out["dataset_index"] = blend->datasets().list();
    out["dataset_sample_index"] = blend->samples().list();
    for (const auto& member : data.members()) {
      out["datasets"].push_back({{"sample_index", to_json(member->index())}});
    }
  } else {
    out["sample_index"] = to_json(data.members().front()->index());
  }
  for (std::int64_t i = 0; i < std::min(dump, data.num_samples()); ++i) {
    out["samples"].push_back(to_json(data.sample(i)));
  }
  return out;
}

template <class Member>
std::string samples_json(const MaskedSamplesQuery& query, double short_sequence_probability,
                         const typename Member::Config& samples,
                         const std::shared_ptr<const MaskedVocabulary>& vocabulary) {
  MaskedDataConfig<Member> data;
  data.samples = samples;
  data.short_sequence_probability = short_sequence_probability;
  data.seed = query.seed;
  data.cache_path = query.data.data_cache_path;
  MaskedSplits<Member> splits =
      open_masked_data(gpt_sources(query.data), query.sizes, vocabulary, data);
  constexpr const char* kNames[] = {"train", "valid", "test"};
  Json out;
  for (std::size_t i = 0; i < splits.size(); ++i) {
    out[kNames[i]] = splits[i] ? to_json(*splits[i], query.dump) : Json();
  }
  return out.dump() + "\n";
}

std::vector<std::string> problems_of(const DataConfig& data, const Options& options) {
  std::vector<std::string> problems = data.masked.masking.problems();
  if (data.tokenizer.empty()) {
    problems.emplace_back("--tokenizer: is missing; masking needs to know its tokens");
  }
  for (const char* flag :
       {"mock-data", "reset-position-ids", "reset-attention-mask", "eod-mask-loss", "eod-id",
        "vocab-size", "add-extra-token-to-sequence", "drop-last-partial-validation-sequence"}) {
    if (options.given(flag)) problems.push_back(concat("--", flag, ": is for --dataset gpt"));
  }
  return problems;
}

// Defaults of Megatron's T5 scripts.
void use_t5_defaults(MaskedConfig& masked, const Options& options) {
  if (!options.given("masking-max-ngram")) masked.masking.max_ngram = 10;
  if (!options.given("masking-geometric")) masked.masking.geometric = !masked.masking.permutation;
}

// T5's sentinels, if the tokenizer has none.
std::int64_t extra_ids(const MaskedSamplesOptions& masked, const DataConfig& data) {
  constexpr std::int64_t kT5Sentinels = 100;
  if (masked.dataset != DatasetKind::kT5 || masked.vocab_extra_ids > 0) {
    return masked.vocab_extra_ids;
  }
  std::unique_ptr<Tokenizer> tokenizer = open_tokenizer(data.tokenizer, data.tiktoken);
  return tokenizer->token_id("<extra_id_0>") ? 0 : kT5Sentinels;
}

}  // namespace

void MaskedSamplesOptions::fields(FieldList& list) {
  list.section("masked samples");
  list.add("dataset", dataset,
           {{"gpt", DatasetKind::kGpt}, {"bert", DatasetKind::kBert}, {"t5", DatasetKind::kT5}},
           "plain text, pairs with masked words, or spans to fill in; the last two need token "
           "files of sentences");
  list.add("vocab-extra-ids", vocab_extra_ids,
           "sentinels <extra_id_0>, ...; those the tokenizer lacks are added after its last token")
      .min(0)
      .limit(1 << 20)
      .defaults_to("the tokenizer's; for t5 100 when it has none");
  list.add("decoder-seq-length", decoder_seq_length, "tokens of a t5 decoder's sample")
      .alias("seq-length-dec")
      .min(0)
      .limit(2147483647.0)
      .defaults_to("seq-length");
}

std::string masked_samples_json(const MaskedSamplesOptions& masked, const MaskedSamplesQuery& query,
                                Options& options) {
  DataConfig data = query.data;
  if (masked.dataset == DatasetKind::kT5) use_t5_defaults(data.masked, options);
  options.add_problems(problems_of(data, options));
  options.throw_problems();
  auto vocabulary = open_masked_vocabulary(data, extra_ids(masked, data));
  const MaskedConfig& flags = data.masked;
  std::int64_t seq_length = data.seq_length;
  if (masked.dataset == DatasetKind::kBert) {
    BertConfig bert{seq_length, flags.bert_binary_head, flags.masking};
    return samples_json<BertDataset>(query, flags.short_seq_prob, bert, vocabulary);
  }
  std::int64_t decoder = masked.decoder_seq_length > 0 ? masked.decoder_seq_length : seq_length;
  T5Config t5{seq_length, decoder, flags.masking};
  return samples_json<T5Dataset>(query, flags.short_seq_prob, t5, vocabulary);
}

}  // namespace bev
