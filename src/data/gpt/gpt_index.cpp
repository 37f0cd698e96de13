#include "data/gpt/gpt_index.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "data/gpt/gpt_epochs.h"
#include "data/indexed/content_hash.h"
#include "data/random/mt19937.h"

namespace bev {

namespace {

enum Array : std::size_t { kDocuments, kSamples, kShuffle };

// Sequence indices of all epochs, shuffled together or with the last epoch separate.
void fill_documents(const GptIndexSpec& spec, const GptEpochs& plan, RandomState& random,
                    std::span<std::int32_t> documents) {
  std::int64_t each = spec.end_sequence - spec.first_sequence;
  for (std::int64_t epoch = 0; epoch < plan.epochs; ++epoch) {
    std::span<std::int32_t> part =
        documents.subspan(static_cast<std::size_t>(epoch * each), static_cast<std::size_t>(each));
    std::iota(part.begin(), part.end(), static_cast<std::int32_t>(spec.first_sequence));
  }
  std::size_t together =
      documents.size() - (plan.separate_last ? static_cast<std::size_t>(each) : 0);
  random.shuffle(documents.first(together));
  random.shuffle(documents.subspan(together));
}

template <class T>
void fill_samples(PackedArray<std::int32_t> lengths, std::span<const std::int32_t> documents,
                  const GptIndexSpec& spec, std::span<T> rows) {
  constexpr std::size_t kAhead = 32;
  std::int64_t extra = spec.extra_token ? 1 : 0;
  std::size_t position = 0;
  std::int64_t offset = 0, length = 0;
  if (!documents.empty()) length = lengths[static_cast<std::size_t>(documents[0])];
  rows[0] = rows[1] = 0;
  for (std::size_t row = 2; row < rows.size(); row += 2) {
    std::int64_t missing = spec.seq_length + extra;
    while (length - offset < missing) {
      missing -= length - offset;
      if (position + 1 == documents.size()) {
        // End of a partial sample; it may be reached more than once.
        missing = 0;
        offset = std::max<std::int64_t>(length - extra, 0);
        break;
      }
      offset = 0;
      length = lengths[static_cast<std::size_t>(documents[++position])];
      if (position + kAhead < documents.size()) {
        lengths.prefetch(static_cast<std::size_t>(documents[position + kAhead]));
      }
    }
    if (missing > 0) offset += missing - extra;
    rows[row] = static_cast<T>(position);
    rows[row + 1] = static_cast<T>(offset);
  }
}

template <class T>
void fill_shuffle(std::size_t first, RandomState& random, std::span<T> shuffle) {
  std::iota(shuffle.begin(), shuffle.end(), T{0});
  random.shuffle(shuffle.first(first));
  random.shuffle(shuffle.subspan(first));
}

std::uint64_t key_of(PackedArray<std::int32_t> lengths, const GptIndexSpec& spec) {
  auto first = static_cast<std::size_t>(spec.first_sequence);
  auto count = static_cast<std::size_t>(spec.end_sequence - spec.first_sequence);
  std::array<std::int64_t, 8> values{spec.first_sequence,
                                     spec.end_sequence,
                                     spec.num_samples.value_or(-1),
                                     spec.seq_length,
                                     static_cast<std::int64_t>(spec.seed),
                                     spec.extra_token,
                                     spec.keep_partial,
                                     static_cast<std::int64_t>(ArrayFile::kVersion)};
  return hash_bytes(lengths.sub(first, count).bytes(),
                    hash_bytes(std::as_bytes(std::span(values)), 0));
}

constexpr const char* kKind = "gpt-index";

ArrayFile make_index(PackedArray<std::int32_t> lengths, const GptIndexSpec& spec) {
  BEV_CHECK(spec.end_sequence <= std::numeric_limits<std::int32_t>::max(), ErrorKind::kInput,
            "sequence ", spec.end_sequence, " is beyond Megatron's 2147483647");
  RandomState random(spec.seed);
  GptEpochs plan = gpt_epochs(lengths, spec);
  std::int64_t count = plan.epochs * (spec.end_sequence - spec.first_sequence);
  std::array<ArrayFile::Shape, 3> shapes{
      {{count, 4}, {2 * (plan.num_samples + 1), 4}, {plan.num_samples, 4}}};
  if (count > std::numeric_limits<std::int32_t>::max()) shapes[kSamples].width = 8;
  if (plan.num_samples >= std::numeric_limits<std::uint32_t>::max() - 1) shapes[kShuffle].width = 8;
  ArrayFile out(shapes);
  std::span<std::int32_t> documents = out.fill<std::int32_t>(kDocuments);
  fill_documents(spec, plan, random, documents);
  if (shapes[kSamples].width == 4) {
    fill_samples(lengths, documents, spec, out.fill<std::int32_t>(kSamples));
  } else {
    fill_samples(lengths, documents, spec, out.fill<std::int64_t>(kSamples));
  }
  auto first = static_cast<std::size_t>(plan.shuffled_together);
  if (shapes[kShuffle].width == 4) {
    fill_shuffle(first, random, out.fill<std::uint32_t>(kShuffle));
  } else {
    fill_shuffle(first, random, out.fill<std::int64_t>(kShuffle));
  }
  return out;
}

}  // namespace

std::string gpt_index_file(PackedArray<std::int32_t> lengths, const GptIndexSpec& spec) {
  return array_file_name(kKind, key_of(lengths, spec));
}

GptIndex::GptIndex(PackedArray<std::int32_t> lengths, const GptIndexSpec& spec,
                   const std::string& cache_folder)
    : arrays_(cached_arrays(cache_folder, kKind, cache_folder.empty() ? 0 : key_of(lengths, spec),
                            [&] { return make_index(lengths, spec); })) {}

std::int64_t GptIndex::entry(std::size_t array, std::int64_t index) const {
  auto at = static_cast<std::size_t>(index);
  return arrays_.shape(array).width == 4 ? arrays_.array<std::uint32_t>(array)[at]
                                         : arrays_.array<std::int64_t>(array)[at];
}

std::int64_t GptIndex::num_documents() const { return arrays_.shape(kDocuments).count; }
std::int64_t GptIndex::num_samples() const { return arrays_.shape(kShuffle).count; }
std::int64_t GptIndex::document(std::int64_t position) const { return entry(kDocuments, position); }
SampleStart GptIndex::sample_start(std::int64_t sample) const {
  return {entry(kSamples, 2 * sample), entry(kSamples, 2 * sample + 1)};
}
std::int64_t GptIndex::shuffled(std::int64_t index) const { return entry(kShuffle, index); }

}  // namespace bev
