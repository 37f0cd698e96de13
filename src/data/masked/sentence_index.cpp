#include "data/masked/sentence_index.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "base/error.h"
#include "data/indexed/content_hash.h"
#include "data/random/mt19937.h"

namespace bev {

namespace {

constexpr const char* kKind = "sentence-index";
static_assert(sizeof(SentenceSample) <= ArrayFile::kMostWidth);

// Draws target lengths: mostly the maximum, one in `one_in_` a shorter one.
class TargetLengths {
 public:
  explicit TargetLengths(const SentenceIndexSpec& spec)
      : random_(spec.seed), whole_(static_cast<std::uint32_t>(spec.target_length)) {
    // Random words are below 2^32, so smaller probabilities are equivalent to 2^-32.
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

// Sentences are collected until they reach the target. A single last sentence is never left over,
// and the end of the document ends a sample whatever its length.
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

// Megatron's seed is a 32-bit integer, so seed + 1 wraps around.
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
  // One epoch is built for a single sample.
  auto wanted = static_cast<std::size_t>(spec.num_samples.value_or(1));
  bool usable = wanted > 0 && add_epoch();
  // Epochs have about equal sizes, so a request beyond memory is refused here.
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
                                     static_cast<std::int64_t>(ArrayFile::kVersion)};
  std::uint64_t key = hash_bytes(std::as_bytes(std::span(values)), 0);
  key = hash_bytes(layout.documents.sub(first, documents + 1).bytes(), key);
  auto begin = static_cast<std::size_t>(layout.documents[first]);
  auto end = static_cast<std::size_t>(layout.documents[first + documents]);
  return hash_bytes(layout.lengths.sub(begin, end - begin).bytes(), key);
}

void check_spec(const SentenceIndexSpec& spec) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  BEV_CHECK(spec.target_length > 1 && spec.target_length <= kMost, ErrorKind::kConfig,
            "--seq-length: leaves ", spec.target_length,
            " tokens for the sentences of a sample; give at least 2 and at most ", kMost);
  BEV_CHECK(spec.seed <= static_cast<std::uint64_t>(kMost), ErrorKind::kConfig,
            "--seed: ", spec.seed, " orders no sentences; use at most ", kMost);
}

ArrayFile make_index(const SentenceLayout& layout, const SentenceIndexSpec& spec) {
  check_spec(spec);
  std::vector<SentenceSample> samples = make_samples(layout, spec);
  ArrayFile out(std::array<ArrayFile::Shape, 1>{
      {{static_cast<std::int64_t>(samples.size()), sizeof(SentenceSample)}}});
  std::ranges::copy(samples, out.fill<SentenceSample>(0).begin());
  return out;
}

}  // namespace

std::string sentence_index_file(const SentenceLayout& layout, const SentenceIndexSpec& spec) {
  return array_file_name(kKind, sentence_key(layout, spec));
}

SentenceIndex::SentenceIndex(const SentenceLayout& layout, const SentenceIndexSpec& spec,
                             const std::string& cache_folder)
    : arrays_(cached_arrays(cache_folder, kKind,
                            cache_folder.empty() ? 0 : sentence_key(layout, spec),
                            [&] { return make_index(layout, spec); })) {}

std::int64_t SentenceIndex::num_samples() const { return arrays_.shape(0).count; }

SentenceSample SentenceIndex::sample(std::int64_t index) const {
  return arrays_.array<SentenceSample>(0)[static_cast<std::size_t>(index)];
}

}  // namespace bev
