// Encoding speed of a tokenizer on JSON lines with a "text" each, as one JSON line.
// usage: tokenize TOKENIZER DOCS.jsonl [MEGABYTES] [THREADS]
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "tokenizer/tokenizer.h"

namespace bev {
namespace {

constexpr int kRuns = 5;

std::vector<std::string> read_documents(const std::string& path, double bytes) {
  std::vector<std::string> documents;
  std::ifstream file(path);
  BEV_CHECK(file.good(), ErrorKind::kInput, path, ": cannot be read");
  double size = 0;
  for (std::string line; size <= bytes && std::getline(file, line);) {
    documents.push_back(nlohmann::json::parse(line).at("text").get<std::string>());
    size += static_cast<double>(documents.back().size());
  }
  return documents;
}

// Tokens of all documents, encoded by so many threads.
std::int64_t encode_all(const Tokenizer& tokenizer, const std::vector<std::string>& documents,
                        int threads) {
  std::atomic<std::size_t> next = 0;
  std::atomic<std::int64_t> tokens = 0;
  auto work = [&] {
    for (std::size_t i; (i = next++) < documents.size();) {
      tokens += static_cast<std::int64_t>(tokenizer.encode(documents[i]).size());
    }
  };
  std::vector<std::thread> others;
  for (int i = 1; i < threads; ++i) others.emplace_back(work);
  work();
  for (std::thread& other : others) other.join();
  return tokens;
}

int run(int argc, char** argv) {
  BEV_CHECK(argc >= 3, ErrorKind::kConfig,
            "usage: tokenize TOKENIZER DOCS.jsonl [MEGABYTES] [THREADS]");
  double megabytes = argc > 3 ? std::atof(argv[3]) : 20;
  int threads = argc > 4 ? std::atoi(argv[4]) : 1;
  auto tokenizer = open_tokenizer(argv[1]);
  std::vector<std::string> documents = read_documents(argv[2], megabytes * 1e6);
  double bytes = 0;
  for (const std::string& text : documents) bytes += static_cast<double>(text.size());
  std::vector<double> seconds;
  std::int64_t tokens = 0;
  for (int i = 0; i < kRuns; ++i) {
    double start = monotonic_seconds();
    tokens = encode_all(*tokenizer, documents, threads);
    seconds.push_back(monotonic_seconds() - start);
  }
  std::ranges::sort(seconds);
  std::printf("{\"name\": \"bevatron, %d thread%s\", \"mb_s\": %.2f, \"tokens\": %lld}\n", threads,
              threads == 1 ? "" : "s", bytes / 1e6 / seconds[kRuns / 2],
              static_cast<long long>(tokens));
  return 0;
}

}  // namespace
}  // namespace bev

int main(int argc, char** argv) {
  try {
    return bev::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
