// data info, data show, data merge: commands that examine and merge token files.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>

#include "app/commands/commands.h"
#include "app/mask_marks.h"
#include "app/options.h"
#include "base/error.h"
#include "base/fields.h"
#include "base/file.h"
#include "base/log.h"
#include "base/output.h"
#include "base/plural.h"
#include "data/indexed/indexed_writer.h"
#include "data/sft/sft_dataset.h"
#include "tokenizer/tokenizer.h"

namespace bev {

namespace {

struct DataInfoOptions {
  std::vector<std::string> data_path;
  bool json = false;

  void fields(FieldList& list);
  std::vector<std::string> problems() const;
};

void DataInfoOptions::fields(FieldList& list) {
  list.section("data info");
  list.add("data-path", data_path, "prefixes of .bin and .idx files");
  list.add("json", json, "print JSON");
}

std::vector<std::string> DataInfoOptions::problems() const {
  std::vector<std::string> out;
  if (data_path.empty()) out.push_back("--data-path: is missing; give prefixes of token files");
  return out;
}

struct DataShowOptions {
  std::string data_path;
  std::int64_t document = 0;
  std::int64_t count = 1;
  std::vector<std::string> sft_data;
  std::string chat_template;
  std::string tokenizer;
  TiktokenOptions tiktoken;
  bool json = false;

  void fields(FieldList& list);
  std::vector<std::string> problems() const;
};

void DataShowOptions::fields(FieldList& list) {
  list.section("data show");
  list.add("data-path", data_path, "prefix of the .bin and .idx files");
  list.add("sft-data", sft_data,
           "files of conversations (JSON or Parquet) to show instead, as training sees them: what "
           "has no loss is between \u27e6 and \u27e7, or faint on a terminal");
  list.add("chat-template", chat_template,
           "file with the chat template of --sft-data, or the name of one of several")
      .defaults_to("the tokenizer's");
  list.add("document", document, "first document or conversation to show, counted from 0").min(0);
  list.add("count", count, "documents to show").min(1);
  list.add("tokenizer", tokenizer, "tokenizer as for train, to show the text");
  tiktoken.fields(list);
  list.add("json", json, "print one JSON line for each document");
}

std::vector<std::string> DataShowOptions::problems() const {
  std::vector<std::string> out;
  if (data_path.empty() == sft_data.empty()) {
    out.push_back(data_path.empty()
                      ? "--data-path: is missing; give the prefix of token files, or --sft-data"
                      : "--sft-data: excludes --data-path; give one of them");
  }
  if (!sft_data.empty()) need(tokenizer, "--tokenizer", "what conversations are encoded with", out);
  if (tiktoken.given() && tokenizer.empty()) {
    out.push_back("--tokenizer: is missing; --tiktoken-pattern says how to read its rank file");
  }
  if (!chat_template.empty() && sft_data.empty()) {
    out.push_back("--chat-template: is for --sft-data");
  }
  return out;
}

struct DataMergeOptions {
  std::vector<std::string> input;
  std::string output_prefix;

  void fields(FieldList& list);
  std::vector<std::string> problems() const;
};

void DataMergeOptions::fields(FieldList& list) {
  list.section("data merge");
  list.add("input", input, "prefixes of .bin and .idx files; a folder: all in it, by name");
  list.add("output-prefix", output_prefix, "prefix of the files to write");
}

std::vector<std::string> DataMergeOptions::problems() const {
  std::vector<std::string> out;
  if (input.empty()) out.push_back("--input: is missing; give prefixes of token files");
  need(output_prefix, "--output-prefix", "the prefix of the files to write", out);
  if (std::ranges::find(input, output_prefix) != input.end()) {
    out.push_back(concat("--output-prefix: ", output_prefix, " is read too; give another"));
  }
  return out;
}

using Json = nlohmann::ordered_json;

// Histogram of document lengths: 0, 1, 2-3, 4-7, ... tokens.
struct Lengths {
  std::int64_t least = 0, most = 0, empty = 0;
  std::vector<std::int64_t> histogram;
};

std::int64_t document_tokens(const IndexedDataset& data, std::int64_t document) {
  auto at = static_cast<std::size_t>(document);
  std::int64_t tokens = 0;
  for (std::int64_t i = data.documents()[at]; i < data.documents()[at + 1]; ++i) {
    tokens += data.lengths()[static_cast<std::size_t>(i)];
  }
  return tokens;
}

Lengths measure(const IndexedDataset& data) {
  Lengths out;
  for (std::int64_t document = 0; document < data.num_documents(); ++document) {
    std::int64_t tokens = document_tokens(data, document);
    out.least = document == 0 ? tokens : std::min(out.least, tokens);
    out.most = std::max(out.most, tokens);
    out.empty += tokens == 0 ? 1 : 0;
    auto bin = static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(tokens)));
    if (out.histogram.size() <= bin) out.histogram.resize(bin + 1);
    ++out.histogram[bin];
  }
  return out;
}

double mean_tokens(const IndexedDataset& data) {
  return static_cast<double>(data.num_tokens()) /
         static_cast<double>(std::max<std::int64_t>(data.num_documents(), 1));
}

Json info_json(const IndexedDataset& data, const Lengths& lengths) {
  Json out{{"prefix", data.name()},
           {"type", name_of(data.type())},
           {"multimodal", data.modes().size() > 0},
           {"documents", data.num_documents()},
           {"empty_documents", lengths.empty},
           {"sequences", data.num_sequences()},
           {"tokens", data.num_tokens()},
           {"document_tokens",
            {{"least", lengths.least}, {"mean", mean_tokens(data)}, {"most", lengths.most}}}};
  for (std::size_t bin = 0; bin < lengths.histogram.size(); ++bin) {
    std::int64_t from = bin == 0 ? 0 : std::int64_t{1} << (bin - 1);
    out["histogram"].push_back({{"from_tokens", from}, {"documents", lengths.histogram[bin]}});
  }
  return out;
}

std::string info_text(const IndexedDataset& data, const Lengths& lengths) {
  constexpr int kWidth = 40;
  std::string out = fmt::format(
      "{}\n  {} documents ({} empty), {} sequences, {} tokens of type {}{}\n"
      "  tokens of a document: {} at least, {:.1f} on average, {} at most\n",
      data.name(), data.num_documents(), lengths.empty, data.num_sequences(), data.num_tokens(),
      name_of(data.type()), data.modes().size() > 0 ? ", with modes" : "", lengths.least,
      mean_tokens(data), lengths.most);
  std::int64_t top = 1;
  for (std::int64_t count : lengths.histogram) top = std::max(top, count);
  auto first =
      std::ranges::find_if(lengths.histogram, [](std::int64_t count) { return count > 0; });
  for (auto bin = static_cast<std::size_t>(first - lengths.histogram.begin());
       bin < lengths.histogram.size(); ++bin) {
    std::int64_t from = bin == 0 ? 0 : std::int64_t{1} << (bin - 1);
    auto bar = static_cast<std::size_t>(kWidth * lengths.histogram[bin] / top);
    out +=
        fmt::format("  {:>10}+ {:>12}  {}\n", from, lengths.histogram[bin], std::string(bar, '#'));
  }
  return out;
}

// Expands folders to the prefixes inside, sorted by name.
std::vector<std::string> expand(const std::vector<std::string>& inputs) {
  std::vector<std::string> out;
  for (const std::string& input : inputs) {
    if (!is_directory(input)) {
      out.push_back(input);
      continue;
    }
    std::size_t before = out.size();
    for (const std::string& name : list_directory(input)) {
      if (!name.ends_with(".idx")) continue;
      out.push_back(join_path(input, name.substr(0, name.size() - 4)));
    }
    BEV_CHECK(out.size() > before, ErrorKind::kInput, input, ": has no .idx file");
  }
  return out;
}

void check_vocabulary(std::span<const std::int32_t> tokens, const Tokenizer& tokenizer,
                      const DataShowOptions& wanted) {
  for (std::int32_t token : tokens) {
    BEV_CHECK(token >= 0 && token < tokenizer.vocab_size(), ErrorKind::kInput, wanted.data_path,
              ": holds token ", token, ", and the tokenizer ", wanted.tokenizer, " has ",
              tokenizer.vocab_size(), "; give the one that made the file");
  }
}

int run_data_info(DataInfoOptions& wanted, const CommandInput& input) {
  input.options.add_problems(wanted.problems());
  input.options.throw_problems();
  for (const std::string& prefix : wanted.data_path) {
    IndexedDataset data(prefix);
    Lengths lengths = measure(data);
    write_stdout(wanted.json ? info_json(data, lengths).dump() + "\n" : info_text(data, lengths));
  }
  return kExitOk;
}

// Conversations as training sees them.
void show_conversations(const DataShowOptions& wanted, const Tokenizer& tokenizer) {
  ChatTemplate chat_template = ChatTemplate::load(wanted.tokenizer, wanted.chat_template, false);
  std::vector<SftConversation> conversations =
      read_conversations(wanted.sft_data, wanted.document, wanted.count, chat_template, tokenizer);
  BEV_CHECK(!conversations.empty(), ErrorKind::kInput, join(wanted.sft_data, ", "),
            ": there is no conversation ", wanted.document, ", counted from 0");
  std::int64_t at = wanted.document;
  for (const auto& [source, tokens] : conversations) {
    std::int64_t learned = std::ranges::count(tokens.learned, 1);
    if (wanted.json) {
      Json line{{"conversation", at},
                {"source", source},
                {"tokens", tokens.ids},
                {"loss_mask", tokens.learned},
                {"text", tokenizer.decode(tokens.ids)}};
      write_stdout(line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
    } else {
      write_stdout(concat("conversation ", at, " (", source,
                          "): ", count_of(std::ssize(tokens.ids), "token"), ", ", learned,
                          " with a loss\n",
                          marked_text(tokenizer, tokens.ids, tokens.learned, mask_marks()), "\n"));
    }
    ++at;
  }
}

int run_data_show(DataShowOptions& wanted, const CommandInput& input) {
  input.options.add_problems(wanted.problems());
  input.options.throw_problems();
  std::unique_ptr<Tokenizer> tokenizer;
  if (!wanted.tokenizer.empty()) tokenizer = open_tokenizer(wanted.tokenizer, wanted.tiktoken);
  if (!wanted.sft_data.empty()) {
    show_conversations(wanted, *tokenizer);
    return kExitOk;
  }
  IndexedDataset data(wanted.data_path);
  BEV_CHECK(wanted.document < data.num_documents(), ErrorKind::kInput, wanted.data_path,
            ": document ", wanted.document, " of ", data.num_documents(), ", counted from 0");
  std::int64_t rest = data.num_documents() - wanted.document;
  for (std::int64_t at = wanted.document; at < wanted.document + std::min(wanted.count, rest);
       ++at) {
    PackedArray<std::int64_t> bounds = data.documents();
    std::vector<std::int32_t> tokens;
    Json sequences = Json::array();
    for (std::int64_t i = bounds[static_cast<std::size_t>(at)];
         i < bounds[static_cast<std::size_t>(at) + 1]; ++i) {
      std::vector<std::int32_t> row(
          static_cast<std::size_t>(data.lengths()[static_cast<std::size_t>(i)]));
      data.read(i, 0, row);
      sequences.push_back(row);
      tokens.insert(tokens.end(), row.begin(), row.end());
    }
    if (tokenizer) check_vocabulary(tokens, *tokenizer, wanted);
    std::string text = tokenizer ? tokenizer->decode(tokens) : "";
    if (wanted.json) {
      Json line{{"document", at}, {"sequences", sequences}};
      if (tokenizer) line["text"] = text;
      write_stdout(line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
    } else {
      write_stdout(concat("document ", at, ", ", count_of(std::ssize(sequences), "sequence"), ", ",
                          count_of(std::ssize(tokens), "token"), "\n",
                          tokenizer ? text : sequences.dump(), "\n"));
    }
  }
  return kExitOk;
}

int run_data_merge(DataMergeOptions& wanted, const CommandInput& input) {
  input.options.add_problems(wanted.problems());
  input.options.throw_problems();
  std::vector<std::string> prefixes = expand(wanted.input);
  make_directories(parent_path(wanted.output_prefix));
  IndexedDataset first(prefixes.front());
  IndexedDatasetWriter writer(wanted.output_prefix, first.type(), first.modes().size() > 0);
  for (const std::string& prefix : prefixes) writer.add_dataset(IndexedDataset(prefix));
  writer.commit();
  log_info(fmt::format(
      "{}: {}, {} of {}", wanted.output_prefix, count_of(writer.num_documents(), "document"),
      count_of(writer.num_sequences(), "sequence"), count_of(std::ssize(prefixes), "pair")));
  return kExitOk;
}

}  // namespace

const Command kDataInfoCommand = {.name = "data info",
                                  .summary = "documents, tokens and lengths of token files",
                                  .examples = "bevatron data info --data-path books web",
                                  .call = call_of<DataInfoOptions, run_data_info>};

const Command kDataShowCommand = {
    .name = "data show",
    .summary = "documents of token files and conversations, as ids and as text",
    .examples =
        "bevatron data show --data-path books --document 17 --count 3 --tokenizer DIR\n"
        "bevatron data show --sft-data chats.jsonl --count 2 --tokenizer DIR",
    .call = call_of<DataShowOptions, run_data_show>};

const Command kDataMergeCommand = {
    .name = "data merge",
    .summary = "join token files in constant memory",
    .examples = "bevatron data merge --input books web --output-prefix all",
    .call = call_of<DataMergeOptions, run_data_merge>};

}  // namespace bev
