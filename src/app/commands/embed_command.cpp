// embed: one vector for each text or row of tokens, under any layout.
#include <algorithm>
#include <exception>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>

#include "app/commands/commands.h"
#include "app/model_source.h"
#include "app/options.h"
#include "app/ranks.h"
#include "app/run_config.h"
#include "app/sentence_config.h"
#include "app/text_rows.h"
#include "base/error.h"
#include "base/fields.h"
#include "base/output.h"
#include "base/thread_pool.h"
#include "bridge/safetensors.h"
#include "data/token_file.h"
#include "infer/embedding.h"
#include "infer/progress_line.h"
#include "infer/shared_numbers.h"
#include "tokenizer/tokenizer.h"

namespace bev {

namespace {

struct EmbedOptions {
  ModelSource model;
  std::string input;
  std::string tokens;
  EmbeddingOptions embedding;
  std::string output;
  bool json = true;  // always
  RunConfig run;

  void fields(FieldList& list);
  std::vector<std::string> problems() const;
};

void EmbedOptions::fields(FieldList& list) {
  list.section("embed");
  model.fields(list);
  list.add("input", input,
           "file with a JSON value on each line, a text or an object with \"text\" or \"input\"; "
           "the special tokens that the tokenizer adds around a text are added");
  list.add("tokens", tokens, "JSON file with input_ids [[...]] instead");
  list.add("pooling", embedding.pooling,
           {{"cls", Pooling::kCls}, {"mean", Pooling::kMean}, {"last", Pooling::kLast}},
           "vector of a row: the final hidden state of its first token, the mean of all, or that "
           "of the last")
      .defaults_to("as 1_Pooling/config.json of the folder says, else last, and cls for encoders");
  list.add("normalize", embedding.normalize, "scale vectors to length 1");
  list.add("output", output,
           "safetensors file for \"embeddings\" [rows, H], in fp32, with --fp64 in fp64");
  list.add("json", json, "results are one JSON line in any case");
  run.parallel.fields(list);
  run.precision.fields(list);
  run.runtime.fields(list);
}

std::vector<std::string> EmbedOptions::problems() const {
  std::vector<std::string> out = model.problems();
  if (tokens.empty()) need(input, "--input", "a file with a text on each line, or --tokens", out);
  if (!tokens.empty() && !input.empty()) out.push_back("--tokens: excludes --input; keep one");
  need(output, "--output", "a safetensors file", out);
  return out;
}

using TokenRows = std::vector<std::vector<std::int32_t>>;

// Rows of tokens in the order of the file, some at a time.
class EmbedInput {
 public:
  EmbedInput(const EmbedOptions& wanted, const std::string& files) : wanted_(wanted) {
    if (!wanted.tokens.empty()) {
      tokens_ = read_token_rows(wanted.tokens, wanted.run.model.vocab_size).input_ids;
      count_ = std::ssize(tokens_);
      return;
    }
    if (!files.empty()) tokenizer_ = load_tokenizer(files);
    BEV_CHECK(tokenizer_, ErrorKind::kInput, "--input: ", files.empty() ? wanted.model.load : files,
              " has no tokenizer.json of a kind that can be read; give token ids by --tokens");
    texts_.emplace(wanted.input);
    count_ = texts_->count();
  }

  std::int64_t count() const { return count_; }
  // About so many tokens; empty at the end.
  TokenRows next(std::int64_t tokens, int threads) {
    constexpr std::int64_t kMostRows = 4096;  // bounds the memory of their vectors
    TokenRows rows = texts_ ? encode_next(tokens, kMostRows, threads) : take(tokens, kMostRows);
    done_ += std::ssize(rows);
    return rows;
  }

 private:
  TokenRows take(std::int64_t tokens, std::int64_t most) {
    TokenRows rows;
    while (tokens > 0 && std::ssize(rows) < most && done_ + std::ssize(rows) < count_) {
      auto index = static_cast<std::size_t>(done_ + std::ssize(rows));
      check_embedding_row(wanted_.run.model, tokens_[index],
                          concat(wanted_.tokens, ": row ", index));
      rows.push_back(std::move(tokens_[index]));
      tokens -= std::ssize(rows.back());
    }
    return rows;
  }

  TokenRows encode_next(std::int64_t tokens, std::int64_t most, int threads) {
    constexpr std::int64_t kTokenBytes = 4;  // about
    const std::vector<TextRow> texts = texts_->next(tokens * kTokenBytes, most);
    TokenRows rows(texts.size());
    std::mutex mutex;
    std::exception_ptr failure;
    ThreadPool pool(threads);
    pool.run(std::ssize(texts), [&](std::int64_t i) {
      auto at = static_cast<std::size_t>(i);
      try {
        rows[at] = tokenizer_->encode(texts[at].text);
        tokenizer_->add_special_tokens(rows[at]);
        check_embedding_row(wanted_.run.model, rows[at], texts[at].where);
      } catch (...) {
        std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
      }
    });
    if (failure) std::rethrow_exception(failure);
    return rows;
  }

  const EmbedOptions& wanted_;
  TokenRows tokens_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::optional<TextRows> texts_;
  std::int64_t count_ = 0, done_ = 0;
};

// All ranks get the rows of world rank 0.
void share_rows(TokenRows& rows, Group& world) {
  if (world.size() == 1) return;
  SharedNumbers numbers(world.rank() == 0);
  auto pass = [&] {
    numbers.pass_list(rows, [&](std::vector<std::int32_t>& row) { numbers.pass_list(row); });
  };
  if (world.rank() == 0) pass();
  numbers.broadcast(world, 0);
  if (world.rank() != 0) pass();
}

class EmbeddingFile {
 public:
  EmbeddingFile(const std::string& path, Dtype dtype, std::int64_t rows, std::int64_t width)
      : dtype_(dtype), writer_(path, {{"embeddings", dtype, {rows, width}}}) {}

  void add(const std::vector<std::vector<double>>& rows) {
    for (const std::vector<double>& row : rows) {
      if (dtype_ == Dtype::kF64) {
        writer_.write("embeddings", std::as_bytes(std::span(row)));
      } else {
        const std::vector<float> narrow(row.begin(), row.end());
        writer_.write("embeddings", std::as_bytes(std::span(narrow)));
      }
    }
  }
  void commit() { writer_.commit(); }

 private:
  Dtype dtype_;
  SafetensorsWriter writer_;
};

// input: null on other processes than the first.
void embed_rank(const RankStart& start, const EmbedOptions& wanted, const SourceModel& source,
                EmbedInput* input) {
  EngineOptions options = engine_options(wanted.run, start.threads, start.local_rank);
  options.gradients = false;
  Rank rank(start.world, start.kernels, options);
  RankModel model(rank, options);
  const bool first = start.world.rank() == 0;
  std::optional<EmbeddingFile> file;
  const Dtype dtype = wanted.run.precision.fp64 ? Dtype::kF64 : Dtype::kF32;
  const std::int64_t width = wanted.run.model.hidden_size;
  if (first) file.emplace(wanted.output, dtype, input->count(), width);
  source.load_weights(model);
  // Several micro-batches at a time keep the stages of a pipeline busy.
  const MeshShape& mesh = model.mesh().shape();
  const std::int64_t tokens =
      wanted.embedding.batch_tokens * mesh.dp * mesh.cp * std::max<std::int64_t>(4, 2 * mesh.pp);
  ProgressLine progress("rows", first ? input->count() : 0);
  std::int64_t rows_done = 0, tokens_done = 0;
  while (true) {
    TokenRows rows = first ? input->next(tokens, start.threads) : TokenRows();
    share_rows(rows, model.mesh().world().host());
    if (rows.empty()) break;
    std::vector<std::vector<double>> vectors = embeddings(model, rows, wanted.embedding);
    if (!first) continue;
    file->add(vectors);
    rows_done += std::ssize(rows);
    for (const std::vector<std::int32_t>& row : rows) tokens_done += std::ssize(row);
    progress.advance(rows_done, tokens_done);
  }
  if (!first) return;
  file->commit();
  nlohmann::ordered_json line{{"embeddings", rows_done}, {"dim", width}, {"tokens", tokens_done}};
  write_stdout(line.dump() + "\n");
}

int run_embed(EmbedOptions& wanted, const CommandInput& input) {
  Options& options = input.options;
  options.add_problems(wanted.problems());
  options.throw_problems();
  SourceModel model(wanted.model);
  wanted.run.model = model.config();
  options.add_problems(wanted.run.resolve_layout());
  options.add_problems(row_problems(wanted.run.parallel));
  options.throw_problems();
  if (!options.given("pooling")) {
    wanted.embedding.pooling = default_pooling(model.files(), wanted.run.model);
  }
  std::optional<EmbedInput> rows;
  on_process_0(input.launch, [&] { rows.emplace(wanted, model.files()); });
  run_ranks(input.launch, wanted.run.parallel, wanted.run.runtime, [&](const RankStart& start) {
    embed_rank(start, wanted, model, rows ? &*rows : nullptr);
  });
  return kExitOk;
}

}  // namespace

const Command kEmbedCommand = {
    .name = "embed",
    .summary = "vectors of texts, from the final hidden states",
    .examples =
        "bevatron embed --hf-model DIR --input texts.jsonl --normalize --output "
        "vectors.safetensors\n"
        "bevatron embed --hf-model DIR --tokens rows.json --pooling mean --output v.safetensors",
    .call = call_of<EmbedOptions, run_embed>};

}  // namespace bev
