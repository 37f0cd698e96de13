#include "data/sentence_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "data/content_hash.h"
#include "data/mt19937.h"
#include "data/staged_file.h"

namespace bev {

namespace {

struct SentenceHeader {
  std::array<char, 8> magic{'B', 'E', 'V', 'S', 'E', 'N', 'T', 'S'};
  std::uint64_t version = 1;
  std::uint64_t key = 0;       // of what the index was made from
  std::uint64_t checksum = 0;  // of the samples
  std::int64_t samples = 0;
};

// Draws the lengths that samples are cut to: mostly the whole, one in so many something shorter.
class TargetLengths {
 public:
  explicit TargetLengths(const SentenceIndexSpec& spec)
      : random_(spec.seed), whole_(static_cast<std::uint32_t>(spec.target_length)) {
    // Words are below 2^32, so rarer than that is the same as that rare.
    constexpr double kRarest = 4294967296.0;
    double probability = spec.short_sequence_probability;
    if (probability > 0) {
      one_in_ = static_cast<std::uint64_t>(std::min(std::round(1.0 / probability), kRarest));
    }
  }

  std::int32_t next() {
    std::uint32_t length = whole_;
    if (one_in_ > 0) {
      std::uint32_t word = random_.next();
      if (word % one_in_ == 0) length = 2 + word % (whole_ - 1);
    }
    return static_cast<std::int32_t>(length);
  }

 private:
  RandomState random_;
  std::uint32_t whole_;
  std::uint64_t one_in_ = 0;  // 0: never
};

bool is_usable(PackedArray<std::int32_t> lengths, std::int64_t first, std::int64_t end,
               std::int64_t least_sentences) {
  if (end - first < least_sentences) return false;
  if (end - first <= 1) return true;
  for (std::int64_t i = first; i < end; ++i) {
    if (lengths[static_cast<std::size_t>(i)] > kLongestSentence) return false;
  }
  return true;
}

// Sentences are gathered until they reach the target; a last one is never left alone, and the end
// of the document closes a sample whatever its length.
void add_document(const SentenceLayout& layout, std::size_t document, std::int64_t least_sentences,
                  TargetLengths& targets, std::vector<SentenceSample>& samples) {
  std::int64_t first = layout.documents[document], end = layout.documents[document + 1];
  if (!is_usable(layout.lengths, first, end, least_sentences)) return;
  BEV_CHECK(end - first <= std::numeric_limits<std::int32_t>::max(), ErrorKind::kInput, "document ",
            document, " has ", end - first, " sentences, more than a sample can hold");
  std::int32_t target = targets.next();
  std::int64_t tokens = 0;
  for (std::int64_t next = first + 1; next <= end; ++next) {
    tokens += layout.lengths[static_cast<std::size_t>(next - 1)];
    bool full = tokens >= target && end - next > 1 && next - first >= least_sentences;
    if (!full && next < end) continue;
    samples.push_back({first, static_cast<std::int32_t>(next - first), target});
    target = targets.next();
    first = next;
    tokens = 0;
  }
}

// Megatron counts its seed in 32 bits, so that one above the largest is the smallest.
std::uint64_t shuffle_seed(std::uint64_t seed) {
  auto next = static_cast<std::int32_t>(static_cast<std::uint32_t>(seed) + 1);
  return static_cast<std::uint64_t>(std::int64_t{next});
}

std::vector<SentenceSample> make_samples(const SentenceLayout& layout,
                                         const SentenceIndexSpec& spec) {
  TargetLengths targets(spec);
  std::vector<SentenceSample> samples;
  auto add_epoch = [&] {
    std::size_t before = samples.size();
    for (std::int64_t document = spec.first_document; document < spec.end_document; ++document) {
      add_document(layout, static_cast<std::size_t>(document), spec.least_sentences, targets,
                   samples);
    }
    return samples.size() > before;
  };
  // One epoch is what a single sample takes.
  auto wanted = static_cast<std::size_t>(spec.num_samples.value_or(1));
  bool usable = wanted > 0 && add_epoch();
  // Epochs are about equal, so more samples than memory can hold are refused here.
  if (usable) samples.reserve(wanted + samples.size());
  while (usable && samples.size() < wanted) usable = add_epoch();
  std::mt19937_64 random(shuffle_seed(spec.seed));
  for (std::size_t i = samples.size(); i > 1; --i) std::swap(samples[i - 1], samples[random() % i]);
  return samples;
}

std::uint64_t sentence_key(const SentenceLayout& layout, const SentenceIndexSpec& spec) {
  auto first = static_cast<std::size_t>(spec.first_document);
  auto documents = static_cast<std::size_t>(spec.end_document - spec.first_document);
  std::array<std::int64_t, 8> values{spec.first_document,
                                     spec.end_document,
                                     spec.num_samples.value_or(-1),
                                     spec.target_length,
                                     spec.least_sentences,
                                     std::bit_cast<std::int64_t>(spec.short_sequence_probability),
                                     static_cast<std::int64_t>(spec.seed),
                                     static_cast<std::int64_t>(SentenceHeader{}.version)};
  std::uint64_t key = hash_bytes(std::as_bytes(std::span(values)), 0);
  key = hash_bytes(layout.documents.sub(first, documents + 1).bytes(), key);
  auto begin = static_cast<std::size_t>(layout.documents[first]);
  auto end = static_cast<std::size_t>(layout.documents[first + documents]);
  return hash_bytes(layout.lengths.sub(begin, end - begin).bytes(), key);
}

std::string file_of_key(std::uint64_t key) {
  return fmt::format("sentence-index-{:016x}.bin", key);
}

void check_spec(const SentenceIndexSpec& spec) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  BEV_CHECK(spec.target_length > 1 && spec.target_length <= kMost, ErrorKind::kConfig,
            "--seq-length: leaves ", spec.target_length,
            " tokens for the sentences of a sample; give at least 2 and at most ", kMost);
  BEV_CHECK(spec.seed <= static_cast<std::uint64_t>(kMost), ErrorKind::kConfig,
            "--seed: ", spec.seed, " orders no sentences; use at most ", kMost);
}

}  // namespace

struct SentenceIndex::Storage {
  std::optional<MappedFile> file;
  std::vector<SentenceSample> memory;  // instead of it
  PackedArray<SentenceSample> samples;

  Storage() = default;
  explicit Storage(std::vector<SentenceSample> made)
      : memory(std::move(made)), samples(std::span<const SentenceSample>(memory)) {}
  // Empty unless the file is whole and was made from the same.
  static std::unique_ptr<Storage> load(const std::string& path, std::uint64_t key);
  void save(const std::string& path, std::uint64_t key) const;
};

std::unique_ptr<SentenceIndex::Storage> SentenceIndex::Storage::load(const std::string& path,
                                                                     std::uint64_t key) {
  if (!path_exists(path)) return nullptr;
  auto out = std::make_unique<Storage>();
  out->file.emplace(path);
  std::span<const std::byte> bytes = out->file->bytes();
  SentenceHeader header;
  const SentenceHeader expected;
  if (bytes.size() < sizeof header) return nullptr;
  std::memcpy(&header, bytes.data(), sizeof header);
  bytes = bytes.subspan(sizeof header);
  bool good = header.magic == expected.magic && header.version == expected.version &&
              header.key == key && bytes.size() % sizeof(SentenceSample) == 0 &&
              header.samples == static_cast<std::int64_t>(bytes.size() / sizeof(SentenceSample)) &&
              header.checksum == hash_bytes(bytes, key);
  if (!good) return nullptr;
  out->samples = {bytes.data(), bytes.size() / sizeof(SentenceSample)};
  return out;
}

void SentenceIndex::Storage::save(const std::string& path, std::uint64_t key) const {
  SentenceHeader header;
  header.key = key;
  header.checksum = hash_bytes(samples.bytes(), key);
  header.samples = static_cast<std::int64_t>(samples.size());
  StagedFile out(path);
  out.write_value(header);
  out.write(samples.bytes());
  out.commit();
}

std::string sentence_index_file(const SentenceLayout& layout, const SentenceIndexSpec& spec) {
  return file_of_key(sentence_key(layout, spec));
}

SentenceIndex::SentenceIndex(const SentenceLayout& layout, const SentenceIndexSpec& spec) {
  check_spec(spec);
  storage_ = std::make_unique<Storage>(make_samples(layout, spec));
}

SentenceIndex::SentenceIndex(const SentenceLayout& layout, const SentenceIndexSpec& spec,
                             const std::string& cache_folder) {
  check_spec(spec);
  std::uint64_t key = sentence_key(layout, spec);
  std::string path = join_path(cache_folder, file_of_key(key));
  storage_ = Storage::load(path, key);
  if (storage_) return;
  if (path_exists(path)) log_warning(concat(path, ": is damaged; it is made again"));
  storage_ = std::make_unique<Storage>(make_samples(layout, spec));
  make_directories(cache_folder);
  storage_->save(path, key);
  // The file's pages are shared by all processes, those in memory are not.
  if (auto saved = Storage::load(path, key)) storage_ = std::move(saved);
}

SentenceIndex::SentenceIndex(SentenceIndex&&) noexcept = default;
SentenceIndex::~SentenceIndex() = default;

std::int64_t SentenceIndex::num_samples() const {
  return static_cast<std::int64_t>(storage_->samples.size());
}

SentenceSample SentenceIndex::sample(std::int64_t index) const {
  return storage_->samples[static_cast<std::size_t>(index)];
}

}  // namespace bev
