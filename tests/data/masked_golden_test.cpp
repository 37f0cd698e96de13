// BERT and T5 samples against values from megatron-core.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "data/masked/masked_blend.h"
#include "tokenizer/tokenizer.h"

namespace bev {
namespace {

using nlohmann::json;

const std::string kGolden = BEV_SOURCE_DIR "/tests/golden/data/";

// The cases of masked_samples.json are flags of `data samples`.

GptSources sources_of(const json& flags) {
  std::vector<std::string> words;
  for (const std::string word : flags["data-path"]) {
    bool prefix = word.find_first_not_of("0123456789.") != std::string::npos;
    words.push_back(prefix ? kGolden + word : word);
  }
  GptSources sources;
  sources.shared = parse_blend(words, "--data-path");
  sources.split = flags["split"];
  return sources;
}

SplitSizes sizes_of(const json& flags) {
  SplitSizes sizes;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const json& size = flags["sizes"][i];
    sizes[i] = size.is_null() ? kOneEpoch : size.get<std::int64_t>();
  }
  return sizes;
}

template <class Member>
MaskedSplits<Member> open_case(const json& flags, typename Member::Config samples) {
  samples.seq_length = flags["seq-length"];
  samples.masking = {.probability = flags["mask-prob"],
                     .max_ngram = flags["masking-max-ngram"],
                     .whole_words = flags["masking-full-word"],
                     .permutation = flags["masking-permutation"],
                     .longer_ngrams = flags["masking-longer-ngrams"],
                     .geometric = flags["masking-geometric"]};
  MaskedDataConfig<Member> config;
  config.samples = samples;
  config.short_sequence_probability = flags["short-seq-prob"];
  config.seed = flags["seed"];
  std::string path = kGolden + flags["tokenizer"].get<std::string>();
  auto vocabulary = std::make_shared<MaskedVocabulary>(read_masked_vocabulary(
      *open_tokenizer(path), path, flags.value("vocab-extra-ids", std::int64_t{0})));
  return open_masked_data(sources_of(flags), sizes_of(flags), vocabulary, config);
}

void expect_sample(const BertSample& sample, const json& expected) {
  EXPECT_EQ(json(sample.tokens), expected["text"]);
  EXPECT_EQ(json(sample.types), expected["types"]);
  EXPECT_EQ(json(sample.labels), expected["labels"]);
  EXPECT_EQ(json(sample.padding_mask), expected["padding_mask"]);
  EXPECT_EQ(json(sample.loss_mask), expected["loss_mask"]);
  EXPECT_EQ(sample.is_random, expected["is_random"] == 1);
  EXPECT_EQ(sample.truncated, expected["truncated"] == 1);
}

void expect_sample(const T5Sample& sample, const json& expected) {
  EXPECT_EQ(json(sample.encoder_tokens), expected["text_enc"]);
  EXPECT_EQ(json(sample.decoder_tokens), expected["text_dec"]);
  EXPECT_EQ(json(sample.labels), expected["labels"]);
  EXPECT_EQ(json(sample.loss_mask), expected["loss_mask"]);
  EXPECT_EQ(json(sample.encoder_mask), expected["enc_mask"]);
  EXPECT_EQ(json(sample.decoder_mask), expected["dec_mask"]);
  EXPECT_EQ(sample.truncated, expected["truncated"] == 1);
}

json index_of(const SentenceIndex& index) {
  json rows = json::array();
  for (std::int64_t i = 0; i < index.num_samples(); ++i) {
    SentenceSample sample = index.sample(i);
    rows.push_back({sample.first, sample.first + sample.sentences, sample.target_length});
  }
  return rows;
}

template <class Member>
void expect_splits(const MaskedSplits<Member>& splits, const json& expected) {
  constexpr const char* kNames[] = {"train", "valid", "test"};
  for (std::size_t i = 0; i < splits.size(); ++i) {
    SCOPED_TRACE(kNames[i]);
    const json& want = expected[kNames[i]];
    ASSERT_EQ(splits[i] == nullptr, want.is_null());
    if (!splits[i]) continue;
    const MaskedBlend<Member>& data = *splits[i];
    EXPECT_EQ(data.num_samples(), want["num_samples"]);
    ASSERT_EQ(data.blend().has_value(), want.contains("datasets"));
    if (data.blend()) {
      EXPECT_EQ(json(data.blend()->datasets().list()), want["dataset_index"]);
      EXPECT_EQ(json(data.blend()->samples().list()), want["dataset_sample_index"]);
    }
    for (std::size_t m = 0; m < data.members().size(); ++m) {
      const json& member = data.blend() ? want["datasets"][m] : want;
      EXPECT_EQ(index_of(data.members()[m]->index()), member["sample_index"]) << m;
    }
    for (std::size_t s = 0; s < want["samples"].size(); ++s) {
      SCOPED_TRACE(s);
      expect_sample(data.sample(static_cast<std::int64_t>(s)), want["samples"][s]);
    }
  }
}

TEST(MegatronCoreMasked, GivesTheSameIndicesAndSamples) {
  json cases = json::parse(read_file(kGolden + "masked_samples.json"));
  std::map<std::string, int> kinds;
  for (const json& entry : cases) {
    const json& flags = entry["flags"];
    SCOPED_TRACE(flags.dump());
    ++kinds[flags["dataset"]];
    if (flags["dataset"] == "bert") {
      BertConfig config;
      config.classification_head = flags["bert-binary-head"];
      expect_splits(open_case<BertDataset>(flags, config), entry["expected"]);
    } else {
      T5Config config;
      config.decoder_seq_length = flags["decoder-seq-length"];
      expect_splits(open_case<T5Dataset>(flags, config), entry["expected"]);
    }
  }
  EXPECT_GE(kinds["bert"], 10);
  EXPECT_GE(kinds["t5"], 6);
}

}  // namespace
}  // namespace bev
