// data samples: what training would read, for comparing with Megatron.
#include <charconv>

#include "app/commands.h"
#include "base/error.h"
#include "base/output.h"
#include "train/sft_data.h"
#include "train/token_files.h"

namespace bev {

namespace {

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

void append_sample(std::string& out, const TokenSample& sample) {
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
  out += "}";
}

// One stream of random numbers for each dataset, if there is a seed for them.
void append_samples(std::string& out, const GptBlend& data, std::int64_t count,
                    std::optional<std::uint64_t> stream_seed) {
  std::vector<RandomState> streams;
  if (stream_seed) streams.assign(data.members().size(), RandomState(*stream_seed));
  append_list(out, count, [&](std::int64_t i) {
    std::string text;
    append_sample(text, stream_seed ? data.sample(i, streams) : data.sample(i));
    return text;
  });
}

void append_split(std::string& out, const GptBlend* data, std::int64_t dump,
                  std::optional<std::uint64_t> stream_seed) {
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
  append_samples(out, *data, std::min(dump, data->num_samples()), stream_seed);
  out += "}";
}

// The first samples of conversations, as training reads them.
void append_sft_split(std::string& out, const SftDataset& data, std::int64_t dump) {
  out += concat("{\"num_samples\":", data.num_samples(), ",\n\"samples\":");
  append_list(out, std::min(dump, data.num_samples()), [&](std::int64_t i) {
    std::string text;
    append_sample(text, data.sample(i));
    return text;
  });
  out += "}";
}

std::string sft_samples(const DataConfig& data, const DataSamplesOptions& wanted,
                        std::uint64_t seed) {
  std::string out = "{\"train\":";
  append_sft_split(out, *open_sft_data(data, DataSplit::kTrain, wanted.vocab_size, seed),
                   wanted.dump);
  if (!data.sft_valid_data.empty()) {
    out += ",\n\"valid\":";
    append_sft_split(out, *open_sft_data(data, DataSplit::kValid, wanted.vocab_size, seed),
                     wanted.dump);
  }
  return out + "}\n";
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

}  // namespace

int run_data_samples(CommandConfig& config, const FieldList&, Options& options) {
  const DataSamplesOptions& wanted = config.data_samples;
  DataConfig& data = config.run.data;
  std::vector<std::string> problems = data.problems();
  bool conversations = !data.sft_data.empty();
  if (!data.has_token_files() && !data.mock_data && !conversations) {
    problems.push_back(
        "--data-path: is missing; give prefixes of token files, --sft-data or --mock-data");
  }
  if (conversations && data.tokenizer.empty()) {
    problems.push_back("--tokenizer: is missing; conversations need it");
  }
  if (data.seq_length == 0) problems.push_back("--seq-length: is missing");
  if (data.mock_data && wanted.vocab_size == 0) {
    problems.push_back("--vocab-size: is missing; made-up tokens need it");
  }
  SplitSizes sizes;
  if (!conversations) sizes = read_sizes(wanted.sizes, problems);
  options.add_problems(problems);
  options.throw_problems();
  if (config.masked_samples.dataset != DatasetKind::kGpt) {
    return run_masked_samples(config, sizes, options);
  }
  auto seed = static_cast<std::uint64_t>(config.run.runtime.seed);
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
  std::string text = "{";
  constexpr const char* kNames[] = {"train", "valid", "test"};
  for (std::size_t i = 0; i < splits.size(); ++i) {
    text += concat(i > 0 ? ",\n\"" : "\"", kNames[i], "\":");
    append_split(text, splits[i].get(), wanted.dump, stream_seed);
  }
  text += "}\n";
  write_result(wanted.output, text);
  return kExitOk;
}

}  // namespace bev
