// data samples: prints what training would read, for comparison with Megatron.
#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "app/commands/commands.h"
#include "app/mask_marks.h"
#include "app/masked_samples.h"
#include "app/options.h"
#include "app/run_config.h"
#include "base/error.h"
#include "base/fields.h"
#include "base/output.h"
#include "base/plural.h"
#include "train/sft_data.h"
#include "train/text_data.h"
#include "train/token_files.h"

namespace bev {

namespace {

struct DataSamplesOptions {
  std::vector<std::string> sizes;  // of training, validation and test; a number or "none"
  std::int64_t dump = 50;
  std::string output;
  bool readable = false;
  std::int64_t vocab_size = 0;
  bool add_extra_token_to_sequence = true;
  bool drop_last_partial_validation_sequence = true;
  bool fim_one_stream = false;
  MaskedSamplesOptions masked;
  RunConfig run;

  void fields(FieldList& list);
};

void DataSamplesOptions::fields(FieldList& list) {
  list.section("data samples");
  list.add("sizes", sizes,
           "samples of training, validation and test; none: one epoch, or all of a blend");
  list.add("dump", dump, "samples to print of each split").min(0);
  list.add("output", output, "JSON file to write").defaults_to("standard output");
  list.add("readable", readable,
           "print text for people instead of JSON, with --tokenizer: what has no loss is between "
           "\u27e6 and \u27e7, or faint on a terminal");
  list.add("vocab-size", vocab_size, "tokens at or above are refused; 0: any")
      .min(0)
      .limit(2147483648.0);
  list.add("add-extra-token-to-sequence", add_extra_token_to_sequence,
           "a sample reads one token more, the label of its last");
  list.add("drop-last-partial-validation-sequence", drop_last_partial_validation_sequence,
           "leave out a last validation sample that is too short; else it is padded");
  list.add("fim-one-stream", fim_one_stream,
           "--fim-data draws on from sample to sample, as Megatron read in order; training gives "
           "each sample its own draws");
  masked.fields(list);
  run.data.fields(list);
  run.runtime.fields(list);
}

template <class At>
void append_list(std::string& out, std::int64_t count, const At& at) {
  out += "[";
  for (std::int64_t i = 0; i < count; ++i) {
    if (i > 0) out += ",";
    append_text(out, at(i));
  }
  out += "]";
}

template <class Values>
void append_list(std::string& out, const Values& values) {
  append_list(out, static_cast<std::int64_t>(values.size()),
              [&](std::int64_t i) { return values[static_cast<std::size_t>(i)]; });
}

void append_index(std::string& out, const GptIndex& index) {
  out += "\"document_index\":";
  append_list(out, index.num_documents(), [&](std::int64_t i) { return index.document(i); });
  out += ",\n\"sample_index\":";
  append_list(out, index.num_samples() + 1, [&](std::int64_t i) {
    SampleStart start = index.sample_start(i);
    return concat("[", start.position, ",", start.offset, "]");
  });
  out += ",\n\"shuffle_index\":";
  append_list(out, index.num_samples(), [&](std::int64_t i) { return index.shuffled(i); });
}

// With a tokenizer, the text too; tokens without loss are in brackets there.
void append_sample(std::string& out, const TokenSample& sample, const Tokenizer* tokenizer) {
  out += "{\"tokens\":";
  append_list(out, sample.tokens);
  out += ",\"labels\":";
  append_list(out, sample.targets);
  out += ",\"loss_mask\":";
  append_list(out, sample.weights);
  out += ",\"position_ids\":";
  append_list(out, positions_of(sample));
  out += ",\"document_lengths\":";
  append_list(out, sample.documents);
  if (tokenizer != nullptr) {
    std::string text = marked_text(*tokenizer, sample, MaskMarks::kBrackets);
    out += concat(",\"text\":", nlohmann::json(text).dump());
  }
  out += "}";
}

// The first samples of a split as text.
template <class At>
void append_readable(std::string& out, const char* split, std::int64_t shown, std::int64_t all,
                     const At& sample_at, const Tokenizer& tokenizer) {
  const MaskMarks marks = mask_marks();
  for (std::int64_t i = 0; i < std::min(shown, all); ++i) {
    TokenSample sample = sample_at(i);
    auto learned = std::ranges::count_if(sample.weights, [](float weight) { return weight > 0; });
    out += concat("--- ", split, " sample ", i, " of ", all, ": ",
                  count_of(std::ssize(sample.tokens), "token"), ", ", learned, " with a loss\n",
                  marked_text(tokenizer, sample, marks), "\n");
  }
}

// One random stream per dataset, if there is a seed.
void append_samples(std::string& out, const GptBlend& data, std::int64_t count,
                    std::optional<std::uint64_t> stream_seed, const Tokenizer* tokenizer) {
  std::vector<RandomState> streams;
  if (stream_seed) streams.assign(data.members().size(), RandomState(*stream_seed));
  append_list(out, count, [&](std::int64_t i) {
    std::string text;
    append_sample(text, stream_seed ? data.sample(i, streams) : data.sample(i), tokenizer);
    return text;
  });
}

void append_split(std::string& out, const GptBlend* data, std::int64_t dump,
                  std::optional<std::uint64_t> stream_seed, const Tokenizer* tokenizer) {
  if (data == nullptr) {
    out += "null";
    return;
  }
  out += concat("{\"num_samples\":", data->num_samples(), ",\n");
  if (const std::optional<BlendIndex>& blend = data->blend()) {
    out += "\"dataset_index\":";
    append_list(out, blend->datasets());
    out += ",\n\"dataset_sample_index\":";
    append_list(out, blend->samples());
    out += ",\n\"datasets\":[";
    for (const auto& member : data->members()) {
      if (&member != &data->members().front()) out += ",\n";
      out += "{";
      append_index(out, member->index());
      out += "}";
    }
    out += "]";
  } else {
    append_index(out, data->members().front()->index());
  }
  out += ",\n\"samples\":";
  append_samples(out, *data, std::min(dump, data->num_samples()), stream_seed, tokenizer);
  out += "}";
}

// The first samples of conversations (SFT), as training reads them.
void append_sft_split(std::string& out, const SftDataset& data, std::int64_t dump,
                      const Tokenizer& tokenizer) {
  out += concat("{\"num_samples\":", data.num_samples(), ",\n\"samples\":");
  append_list(out, std::min(dump, data.num_samples()), [&](std::int64_t i) {
    std::string text;
    append_sample(text, data.sample(i), &tokenizer);
    return text;
  });
  out += "}";
}

std::string sft_samples(const DataConfig& data, const DataSamplesOptions& wanted,
                        std::uint64_t seed) {
  std::unique_ptr<Tokenizer> tokenizer = open_tokenizer(data.tokenizer, data.tiktoken);
  std::string out;
  for (DataSplit split : {DataSplit::kTrain, DataSplit::kValid}) {
    if (split == DataSplit::kValid && data.sft_valid_data.empty()) break;
    const char* name = split == DataSplit::kTrain ? "train" : "valid";
    std::shared_ptr<const SftDataset> from = open_sft_data(data, split, wanted.vocab_size, seed);
    if (wanted.readable) {
      append_readable(
          out, name, wanted.dump, from->num_samples(),
          [&](std::int64_t i) { return from->sample(i); }, *tokenizer);
      continue;
    }
    out += concat(out.empty() ? "{\"" : ",\n\"", name, "\":");
    append_sft_split(out, *from, wanted.dump, *tokenizer);
  }
  return wanted.readable ? out : out + "}\n";
}

// Samples of token files, in all splits.
std::string gpt_samples(const GptSplits& splits, const DataSamplesOptions& wanted,
                        std::optional<std::uint64_t> stream_seed) {
  constexpr const char* kNames[] = {"train", "valid", "test"};
  const DataConfig& data = wanted.run.data;
  std::unique_ptr<Tokenizer> tokenizer;
  if (!data.tokenizer.empty()) tokenizer = open_tokenizer(data.tokenizer, data.tiktoken);
  std::string out;
  for (std::size_t i = 0; i < splits.size(); ++i) {
    const GptBlend* split = splits[i].get();
    if (!wanted.readable) {
      out += concat(i > 0 ? ",\n\"" : "{\"", kNames[i], "\":");
      append_split(out, split, wanted.dump, stream_seed, tokenizer.get());
    } else if (split != nullptr) {
      append_readable(
          out, kNames[i], wanted.dump, split->num_samples(),
          [&](std::int64_t at) { return split->sample(at); }, *tokenizer);
    }
  }
  return wanted.readable ? out : out + "}\n";
}

SplitSizes read_sizes(const std::vector<std::string>& words, std::vector<std::string>& problems) {
  constexpr std::int64_t kMost = std::int64_t{1} << 38;
  SplitSizes sizes;
  if (words.size() != sizes.size()) {
    problems.push_back("--sizes: give three numbers, of training, validation and test samples");
    return sizes;
  }
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const std::string& word = words[i];
    std::int64_t value = 0;
    auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    bool number = error == std::errc() && end == word.data() + word.size();
    if (word == "none") {
      sizes[i] = kOneEpoch;
    } else if (number && value >= 0 && value <= kMost) {
      sizes[i] = value;
    } else {
      problems.push_back(concat("--sizes: '", word, "' is not a number of samples or none"));
    }
  }
  return sizes;
}

int run_data_samples(DataSamplesOptions& wanted, const CommandInput& input) {
  DataConfig& data = wanted.run.data;
  take_vocabulary_files(data);
  std::vector<std::string> problems = data.problems();
  bool conversations = !data.sft_data.empty();
  if (!data.has_token_files() && !data.mock_data && !conversations) {
    problems.push_back(
        "--data-path: is missing; give prefixes of token files, --sft-data or --mock-data");
  }
  if (conversations && data.tokenizer.empty()) {
    problems.push_back("--tokenizer: is missing; conversations need it");
  }
  if (wanted.readable && wanted.masked.dataset != DatasetKind::kGpt) {
    problems.push_back("--readable: is for --dataset gpt and for --sft-data");
  }
  if (wanted.readable && data.tokenizer.empty() && !conversations) {
    problems.push_back("--tokenizer: is missing; --readable needs it");
  }
  if (data.seq_length == 0) problems.push_back("--seq-length: is missing");
  if (data.mock_data && wanted.vocab_size == 0) {
    problems.push_back("--vocab-size: is missing; made-up tokens need it");
  }
  SplitSizes sizes;
  if (!conversations) sizes = read_sizes(wanted.sizes, problems);
  input.options.add_problems(problems);
  input.options.throw_problems();
  auto seed = static_cast<std::uint64_t>(wanted.run.runtime.seed);
  if (wanted.masked.dataset != DatasetKind::kGpt) {
    MaskedSamplesQuery query{data, sizes, seed, wanted.dump};
    write_result(wanted.output, masked_samples_json(wanted.masked, query, input.options));
    return kExitOk;
  }
  if (conversations) {
    write_result(wanted.output, sft_samples(data, wanted, seed));
    return kExitOk;
  }
  if (data.mock_data && data.eod_id < 0) data.eod_id = wanted.vocab_size - 1;
  GptDataConfig gpt = gpt_data_config(data, wanted.vocab_size, seed);
  gpt.samples.extra_token = wanted.add_extra_token_to_sequence;
  gpt.drop_last_partial_validation_sequence = wanted.drop_last_partial_validation_sequence;
  GptSplits splits = data.mock_data ? open_mock_gpt_data(sizes, gpt)
                                    : open_gpt_data(gpt_sources(data), sizes, gpt);
  std::optional<std::uint64_t> stream_seed;
  if (wanted.fim_one_stream) stream_seed = gpt.seed;
  write_result(wanted.output, gpt_samples(splits, wanted, stream_seed));
  return kExitOk;
}

}  // namespace

const Command kDataSamplesCommand = {
    .name = "data samples",
    .summary = "the order and the tokens of the samples that training would read, as JSON",
    .examples =
        "bevatron data samples --data-path 0.3 books 0.7 web --split 99,1,0 --seq-length 1024 "
        "--sizes 1000,10,0 --dump 50 --output samples.json\n"
        "bevatron data samples --sft-data chats.jsonl --tokenizer DIR --seq-length 512 --dump 3 "
        "--readable\n"
        "bevatron data samples --dataset bert --data-path books_text_sentence --tokenizer "
        "vocab.txt --seq-length 512 --sizes 1000,10,0",
    .call = call_of<DataSamplesOptions, run_data_samples>};

}  // namespace bev
