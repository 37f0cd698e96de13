#include "app/masked_samples.h"

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "app/options.h"
#include "base/error.h"
#include "base/fields.h"
#include "data/masked/masked_blend.h"
#include "tokenizer/tokenizer.h"
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

std::vector<std::string> problems_of(const MaskedSamplesOptions& masked, const DataConfig& data,
                                     const Options& options) {
  std::vector<std::string> problems = masked.masking.problems();
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
void use_t5_defaults(MaskedSamplesOptions& masked, const Options& options) {
  if (!options.given("masking-max-ngram")) masked.masking.max_ngram = 10;
  if (!options.given("masking-geometric")) masked.masking.geometric = !masked.masking.permutation;
}

std::shared_ptr<const MaskedVocabulary> open_vocabulary(const MaskedSamplesOptions& masked,
                                                        const DataConfig& data) {
  constexpr std::int64_t kT5Sentinels = 100;
  std::unique_ptr<Tokenizer> tokenizer = open_tokenizer(data.tokenizer, data.tiktoken);
  std::int64_t extra_ids = masked.vocab_extra_ids;
  bool needs_sentinels = masked.dataset == DatasetKind::kT5 && extra_ids == 0;
  if (needs_sentinels && !tokenizer->token_id("<extra_id_0>")) extra_ids = kT5Sentinels;
  auto vocabulary = std::make_shared<MaskedVocabulary>(
      read_masked_vocabulary(*tokenizer, data.tokenizer, extra_ids));
  if (data.pad_id >= 0) vocabulary->pad = static_cast<std::int32_t>(data.pad_id);
  return vocabulary;
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
  list.add("mask-prob", masking.probability, "share of the tokens that is masked")
      .above(0)
      .below(1);
  list.add("short-seq-prob", short_seq_prob, "share of samples that are cut shorter than others")
      .min(0)
      .max(1);
  list.add("bert-binary-head", bert_binary_head, "samples are pairs, half of them swapped")
      .negated_by("bert-no-binary-head");
  list.add("masking-max-ngram", masking.max_ngram, "words that are masked together, at most")
      .min(1)
      .limit(1 << 16)
      .defaults_to("3, for t5 10");
  list.add("masking-full-word", masking.whole_words, "mask whole words, not pieces of them");
  list.add("masking-permutation", masking.permutation,
           "as many other tokens as are masked change places");
  list.add("masking-longer-ngrams", masking.longer_ngrams,
           "more words together are likelier than fewer");
  list.add("masking-geometric", masking.geometric,
           "draw how many words from a geometric distribution (SpanBERT); t5 does unless told "
           "--no-masking-geometric");
}

std::string masked_samples_json(MaskedSamplesOptions masked, const MaskedSamplesQuery& query,
                                Options& options) {
  if (masked.dataset == DatasetKind::kT5) use_t5_defaults(masked, options);
  options.add_problems(problems_of(masked, query.data, options));
  options.throw_problems();
  std::shared_ptr<const MaskedVocabulary> vocabulary = open_vocabulary(masked, query.data);
  std::int64_t seq_length = query.data.seq_length;
  if (masked.dataset == DatasetKind::kBert) {
    BertConfig bert{seq_length, masked.bert_binary_head, masked.masking};
    return samples_json<BertDataset>(query, masked.short_seq_prob, bert, vocabulary);
  }
  std::int64_t decoder = masked.decoder_seq_length > 0 ? masked.decoder_seq_length : seq_length;
  T5Config t5{seq_length, decoder, masked.masking};
  return samples_json<T5Dataset>(query, masked.short_seq_prob, t5, vocabulary);
}

}  // namespace bev
