#include "data/text_corpus.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>

#include "base/error.h"
#include "base/philox.h"
#include "data/shuffle.h"

namespace bev {

namespace {
namespace fs = std::filesystem;

constexpr std::size_t kMapFromBytes = 1 << 20;

std::vector<std::string> files_under(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code error;
  fs::recursive_directory_iterator entry(folder, error), end;
  while (!error && entry != end) {
    std::error_code dangling;  // a link to nothing is no regular file
    if (entry->is_regular_file(dangling)) files.push_back(entry->path().string());
    entry.increment(error);
  }
  BEV_CHECK(!error, ErrorKind::kInput, "cannot list ", folder, ": ", error.message());
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

const char* name_of(DataSplit split) {
  switch (split) {
    case DataSplit::kTrain:
      return "train";
    case DataSplit::kValid:
      return "validation";
    case DataSplit::kTest:
      return "test";
  }
  return "unknown";
}

std::string_view TextCorpus::Document::bytes() const {
  if (large == nullptr) return text;
  return {reinterpret_cast<const char*>(large->bytes().data()), large->bytes().size()};
}

TextCorpus::TextCorpus(std::span<const std::string> paths) {
  for (const std::string& path : paths) {
    if (is_directory(path)) {
      for (const std::string& file : files_under(path)) add_file(file);
    } else {
      add_file(path);
    }
  }
  BEV_CHECK(num_tokens_ > 0, ErrorKind::kInput, "text: no text in ",
            paths.empty() ? "no files" : join(paths, ", "));
}

void TextCorpus::add_file(const std::string& path) {
  Document document;
  document.begin = num_tokens_;
  std::error_code unknown;  // the size of a pipe; reading says what is wrong with the rest
  std::uintmax_t bytes = fs::file_size(path, unknown);
  if (!unknown && bytes >= kMapFromBytes) {
    document.large = std::make_unique<MappedFile>(path);
  } else {
    document.text = read_file(path);
  }
  num_tokens_ += static_cast<std::int64_t>(document.bytes().size());
  if (!document.bytes().empty()) documents_.push_back(std::move(document));
}

void TextCorpus::read(std::int64_t begin, std::span<std::int32_t> tokens) const {
  auto count = static_cast<std::int64_t>(tokens.size());
  BEV_CHECK(begin >= 0 && begin <= num_tokens_ && count <= num_tokens_ - begin,
            ErrorKind::kInternal, "text: tokens [", begin, ", ", begin + count, ") of ",
            num_tokens_);
  auto document = std::upper_bound(
      documents_.begin(), documents_.end(), begin,
      [](std::int64_t position, const Document& candidate) { return position < candidate.begin; });
  --document;
  for (std::size_t done = 0; done < tokens.size(); ++document) {
    std::string_view bytes = document->bytes().substr(
        static_cast<std::size_t>(begin + static_cast<std::int64_t>(done) - document->begin),
        tokens.size() - done);
    std::transform(bytes.begin(), bytes.end(), tokens.begin() + static_cast<std::ptrdiff_t>(done),
                   [](char byte) { return static_cast<unsigned char>(byte); });
    done += bytes.size();
  }
}

std::array<std::int64_t, 4> split_bounds(std::string_view weights, std::int64_t total) {
  std::vector<std::string> parts = bev::split(weights, ',');
  std::array<double, 3> shares{};
  double sum = 0;
  bool good = !parts.empty() && parts.size() <= shares.size();
  for (std::size_t i = 0; good && i < parts.size(); ++i) {
    std::string_view text = trim(parts[i]);
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), shares[i]);
    good = error == std::errc() && end == text.data() + text.size() && shares[i] >= 0 &&
           std::isfinite(shares[i]);
    sum += shares[i];
  }
  BEV_CHECK(good && sum > 0 && std::isfinite(sum), ErrorKind::kConfig, "split: '", weights,
            "' is not one to three weights, not all 0, like 969,30,1");
  std::array<std::int64_t, 4> bounds{};
  double cumulative = 0;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    cumulative += shares[i] / sum;  // in this order, as Megatron rounds
    bounds[i + 1] = std::min(total, std::lrint(cumulative * static_cast<double>(total)));
  }
  return bounds;
}

TextDataset::TextDataset(std::shared_ptr<const TextCorpus> corpus, const TextDatasetConfig& config)
    : corpus_(std::move(corpus)), config_(config) {
  BEV_CHECK(config.seq_length > 0, ErrorKind::kConfig, "text: sequence length ", config.seq_length,
            " must be above 0");
  std::array<std::int64_t, 4> bounds = split_bounds(config.split, corpus_->num_tokens());
  auto part = static_cast<std::size_t>(config.part);
  begin_ = bounds[part];
  num_tokens_ = bounds[part + 1] - begin_;
  num_samples_ = std::max<std::int64_t>(num_tokens_ - 1, 0) / config.seq_length;
}

void TextDataset::window(std::int64_t index, std::span<std::int32_t> tokens) const {
  BEV_CHECK(num_samples_ > 0, ErrorKind::kInput, "text: the ", name_of(config_.part),
            " part (split ", config_.split, ") has ", num_tokens_, " of ", corpus_->num_tokens(),
            " tokens, one sample needs ", config_.seq_length + 1);
  BEV_CHECK(index >= 0 && static_cast<std::int64_t>(tokens.size()) == config_.seq_length + 1,
            ErrorKind::kInternal, "text: sample ", index, " into ", tokens.size(), " tokens");
  std::int64_t epoch = index / num_samples_, place = index % num_samples_;
  if (config_.shuffle) {
    std::uint64_t key = mix_bits(config_.seed, static_cast<std::uint64_t>(epoch));
    place = permute_index(place, num_samples_, key);
  }
  corpus_->read(begin_ + place * config_.seq_length, tokens);
}

}  // namespace bev
