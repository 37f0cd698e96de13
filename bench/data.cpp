// Data pipeline benchmark: writing token files, building the sample index, reading samples.
//   data FOLDER DOCUMENTS TOKENS SEQ_LENGTH
// Prints one JSON line; the files stay in FOLDER for peers to read.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <random>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/output.h"
#include "data/gpt/gpt_blend.h"
#include "data/indexed/indexed_dataset.h"
#include "data/indexed/indexed_writer.h"
#include "train/sample_reader.h"

namespace bev {
namespace {

// Best of several runs, to exclude interference by other processes.
template <class Body>
double best_seconds(int runs, const Body& body) {
  double best = 1e30;
  for (int i = 0; i < runs; ++i) {
    double begin = monotonic_seconds();
    body();
    best = std::min(best, monotonic_seconds() - begin);
  }
  return best;
}

// Document lengths are uniform from 1 to twice the mean.
double write_tokens(const std::string& prefix, std::int64_t documents, std::int64_t tokens) {
  std::mt19937 random(1);
  auto most = static_cast<std::uint32_t>(2 * tokens / documents - 1);
  std::vector<std::int32_t> row(most);
  for (std::size_t i = 0; i < row.size(); ++i) row[i] = static_cast<std::int32_t>(i % 50000);
  return best_seconds(1, [&] {
    IndexedDatasetWriter writer(prefix, TokenType::kU16);
    for (std::int64_t i = 0; i < documents; ++i) {
      writer.add_sequence(std::span(row).first(1 + random() % most));
      writer.end_document();
    }
    writer.commit();
  });
}

double read_samples(const Dataset& data, std::int64_t count) {
  std::int64_t sum = 0;
  double seconds = best_seconds(3, [&] {
    for (std::int64_t i = 0; i < count; ++i) sum += data.sample(i).tokens.back();
  });
  BEV_CHECK(sum >= 0, ErrorKind::kInternal, "bench: tokens ", sum);
  return static_cast<double>(count) / seconds;
}

// The same through the prefetching threads of a loader, in micro-batches.
double read_ahead(std::shared_ptr<const Dataset> data, std::int64_t count, std::int64_t threads) {
  constexpr std::int64_t kMicroBatch = 8;
  BatchSpec batches{.micro_batch_size = kMicroBatch, .global_batch_size = kMicroBatch};
  SampleOrderSpec order{.micro_batch_size = kMicroBatch};
  double seconds = best_seconds(3, [&] {
    SampleReader reader({data, std::make_shared<SampleOrder>(order), BatchSchedule(batches)}, 0,
                        {threads, 4});
    for (std::int64_t i = 0; i < count / kMicroBatch; ++i) reader.next();
  });
  return static_cast<double>(count / kMicroBatch * kMicroBatch) / seconds;
}

int run(const std::string& folder, std::int64_t documents, std::int64_t tokens,
        std::int64_t seq_length) {
  std::string prefix = join_path(folder, "tokens");
  double write_seconds = write_tokens(prefix, documents, tokens);
  double open_seconds = best_seconds(5, [&] { IndexedDataset data(prefix); });
  IndexedDataset data(prefix);
  GptIndexSpec spec;
  spec.end_sequence = data.num_sequences();
  spec.num_samples = (data.num_tokens() - 1) / seq_length;
  spec.seq_length = seq_length;
  double build_seconds = best_seconds(9, [&] { GptIndex index(data.lengths(), spec); });
  std::string cache = join_path(folder, "cache");
  GptIndex warm(data.lengths(), spec, cache);
  double cached_seconds = best_seconds(9, [&] { GptIndex index(data.lengths(), spec, cache); });
  GptDataConfig config;
  config.samples.seq_length = seq_length;
  config.samples.vocab_size = 50257;
  GptSources sources{.shared = Blend{{prefix}, {}}, .split = "1", .own = {}};
  auto dataset = open_gpt_data(sources, {spec.num_samples, std::nullopt, std::nullopt}, config)[0];
  std::int64_t count = std::min<std::int64_t>(100000, dataset->num_samples());
  double samples = read_samples(*dataset, count);
  double in_step = read_ahead(dataset, count, 0), ahead = read_ahead(dataset, count, 1);
  write_stdout(fmt::format(
      "{{\"documents\": {}, \"tokens\": {}, \"seq_length\": {}, \"write_tokens_s\": {:.0f}, "
      "\"open_s\": {:.4f}, \"index_s\": {:.4f}, \"cached_index_s\": {:.4f}, "
      "\"samples_s\": {:.0f}, \"loader_samples_s\": {:.0f}, \"loader_ahead_samples_s\": {:.0f}}}\n",
      documents, data.num_tokens(), seq_length,
      static_cast<double>(data.num_tokens()) / write_seconds, open_seconds, build_seconds,
      cached_seconds, samples, in_step, ahead));
  return 0;
}

}  // namespace
}  // namespace bev

int main(int argc, char** argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() != 4) return 2;
  return bev::run(words[0], std::atoll(words[1].c_str()), std::atoll(words[2].c_str()),
                  std::atoll(words[3].c_str()));
}
