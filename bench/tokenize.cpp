// Encoding speed of a tokenizer on JSON lines with a "text" field, as JSON lines: on one thread and
// optionally on several, compared with the speedup of a plain arithmetic loop on as many threads.
// usage: tokenize TOKENIZER DOCS.jsonl [MEGABYTES] [THREADS]
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
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

// Cost of a piece of work. CPU time separates contention from a busy machine: it grows with the
// number of threads only if they interfere with each other.
struct Cost {
  double seconds = 0, processor_seconds = 0;
};

double processor_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

// Calls work(i) for each i < count on `threads` threads.
template <class Work>
Cost time_on(int threads, std::size_t count, Work work) {
  std::atomic<std::size_t> next = 0;
  auto loop = [&] {
    for (std::size_t i; (i = next++) < count;) work(i);
  };
  double start = monotonic_seconds(), processor_start = processor_seconds();
  std::vector<std::thread> others;
  for (int i = 1; i < threads; ++i) others.emplace_back(loop);
  loop();
  for (std::thread& other : others) other.join();
  return {monotonic_seconds() - start, processor_seconds() - processor_start};
}

// Arithmetic in registers: the best speedup that threads can reach on this machine at the moment.
Cost time_arithmetic(int threads) {
  constexpr std::size_t kPieces = 256;
  constexpr int kSteps = 200000;
  std::atomic<std::uint64_t> sum = 0;
  return time_on(threads, kPieces, [&](std::size_t i) {
    std::uint64_t value = i + 1;
    for (int step = 0; step < kSteps; ++step) {
      value = value * 6364136223846793005u + 1442695040888963407u;
    }
    sum += value;
  });
}

double median(std::vector<Cost> costs, double Cost::*member) {
  std::ranges::sort(costs, {}, member);
  return costs[costs.size() / 2].*member;
}

// Speedup of several threads over one, and the CPU time that they waste.
struct Gain {
  double wall, processor;
};
Gain gain(const std::vector<Cost>& one, const std::vector<Cost>& many) {
  auto ratio = [&](double Cost::*member) { return median(one, member) / median(many, member); };
  return {ratio(&Cost::seconds), ratio(&Cost::processor_seconds)};
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
  std::vector<std::size_t> tokens(documents.size());
  auto encode = [&](std::size_t i) { tokens[i] = tokenizer->encode(documents[i]).size(); };
  // Runs alternate, so that other load on the machine affects all equally.
  std::vector<Cost> one, many, one_arithmetic, many_arithmetic;
  for (int i = 0; i < kRuns; ++i) {
    one.push_back(time_on(1, documents.size(), encode));
    if (threads == 1) continue;
    many.push_back(time_on(threads, documents.size(), encode));
    one_arithmetic.push_back(time_arithmetic(1));
    many_arithmetic.push_back(time_arithmetic(threads));
  }
  std::printf("{\"name\": \"bevatron, 1 thread\", \"mb_s\": %.2f, \"tokens\": %zu}\n",
              bytes / 1e6 / median(one, &Cost::seconds),
              std::accumulate(tokens.begin(), tokens.end(), std::size_t{0}));
  if (threads == 1) return 0;
  Gain ours = gain(one, many), best = gain(one_arithmetic, many_arithmetic);
  std::printf(
      "{\"name\": \"bevatron, %d threads\", \"mb_s\": %.2f, \"gain\": %.2f, \"arithmetic_gain\": "
      "%.2f, \"share\": %.2f, \"processor_share\": %.2f}\n",
      threads, bytes / 1e6 / median(many, &Cost::seconds), ours.wall, best.wall,
      ours.wall / best.wall, ours.processor / best.processor);
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
