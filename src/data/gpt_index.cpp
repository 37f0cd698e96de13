#include "data/gpt_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "data/content_hash.h"
#include "data/gpt_epochs.h"
#include "data/mt19937.h"
#include "data/staged_file.h"

namespace bev {

namespace {

// The file, and the same in memory: the header, then the three arrays, each from a multiple of
// eight bytes on.
struct Header {
  std::array<char, 8> magic{'B', 'E', 'V', 'I', 'N', 'D', 'E', 'X'};
  std::uint64_t version = 1;
  std::uint64_t key = 0;       // of what the index was made from
  std::uint64_t checksum = 0;  // of the arrays
  std::int64_t documents = 0, samples = 0;
  std::int64_t sample_bytes = 4, shuffle_bytes = 4;  // of an entry
};

struct Places {
  std::size_t documents, samples, shuffle, end;
};

std::size_t aligned(std::size_t bytes) { return (bytes + 7) / 8 * 8; }

Places places_of(const Header& header) {
  auto bytes = [](std::int64_t count, std::int64_t each) {
    return aligned(static_cast<std::size_t>(count) * static_cast<std::size_t>(each));
  };
  Places at;
  at.documents = sizeof(Header);
  at.samples = at.documents + bytes(header.documents, 4);
  at.shuffle = at.samples + bytes(2 * (header.samples + 1), header.sample_bytes);
  at.end = at.shuffle + bytes(header.samples, header.shuffle_bytes);
  return at;
}

// Sequence numbers of every epoch, shuffled together, or the last epoch apart.
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
        // The end of a partial sample; such an end may be reached more than once.
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
                                     static_cast<std::int64_t>(Header{}.version)};
  return hash_bytes(lengths.sub(first, count).bytes(),
                    hash_bytes(std::as_bytes(std::span(values)), 0));
}

std::string file_name(std::uint64_t key) { return fmt::format("gpt-index-{:016x}.bin", key); }

}  // namespace

struct GptIndex::Storage {
  std::optional<MappedFile> file;
  std::unique_ptr<std::byte[]> memory;  // instead of it
  std::span<const std::byte> bytes;
  Header header;
  Places at;

  Storage(PackedArray<std::int32_t> lengths, const GptIndexSpec& spec, std::uint64_t key);
  // Empty unless the file is whole and was made from the same.
  static std::unique_ptr<Storage> load(const std::string& path, std::uint64_t key);
  void save(const std::string& path) const;

  std::int64_t entry(std::size_t place, std::int64_t index, std::int64_t width) const {
    const std::byte* from = bytes.data() + place + index * width;
    return width == 4 ? PackedArray<std::uint32_t>(from, 1)[0]
                      : PackedArray<std::int64_t>(from, 1)[0];
  }

 private:
  Storage() = default;
  template <class T>
  std::span<T> part(std::size_t place, std::int64_t count) {
    return {reinterpret_cast<T*>(memory.get() + place), static_cast<std::size_t>(count)};
  }
};

GptIndex::Storage::Storage(PackedArray<std::int32_t> lengths, const GptIndexSpec& spec,
                           std::uint64_t key) {
  BEV_CHECK(spec.end_sequence <= std::numeric_limits<std::int32_t>::max(), ErrorKind::kInput,
            "sequence ", spec.end_sequence, " is beyond Megatron's 2147483647");
  RandomState random(spec.seed);
  GptEpochs plan = gpt_epochs(lengths, spec);
  header.key = key;
  header.documents = plan.epochs * (spec.end_sequence - spec.first_sequence);
  header.samples = plan.num_samples;
  if (header.documents > std::numeric_limits<std::int32_t>::max()) header.sample_bytes = 8;
  if (header.samples >= std::numeric_limits<std::uint32_t>::max() - 1) header.shuffle_bytes = 8;
  at = places_of(header);
  memory = std::make_unique_for_overwrite<std::byte[]>(at.end);
  bytes = {memory.get(), at.end};
  for (std::size_t end : {at.samples, at.shuffle, at.end}) {
    std::memset(memory.get() + end - 8, 0, 8);  // the padding, where there is some
  }
  std::span<std::int32_t> documents = part<std::int32_t>(at.documents, header.documents);
  fill_documents(spec, plan, random, documents);
  std::int64_t entries = 2 * (header.samples + 1);
  if (header.sample_bytes == 4) {
    fill_samples(lengths, documents, spec, part<std::int32_t>(at.samples, entries));
  } else {
    fill_samples(lengths, documents, spec, part<std::int64_t>(at.samples, entries));
  }
  auto first = static_cast<std::size_t>(plan.shuffled_together);
  if (header.shuffle_bytes == 4) {
    fill_shuffle(first, random, part<std::uint32_t>(at.shuffle, header.samples));
  } else {
    fill_shuffle(first, random, part<std::int64_t>(at.shuffle, header.samples));
  }
}

std::unique_ptr<GptIndex::Storage> GptIndex::Storage::load(const std::string& path,
                                                           std::uint64_t key) {
  if (!path_exists(path)) return nullptr;
  std::unique_ptr<Storage> out(new Storage);
  out->file.emplace(path);
  out->bytes = out->file->bytes();
  Header& header = out->header;
  const Header expected;
  if (out->bytes.size() < sizeof header) return nullptr;
  std::memcpy(&header, out->bytes.data(), sizeof header);
  auto within = [&](std::int64_t count) {
    return count >= 0 && static_cast<std::size_t>(count) <= out->bytes.size() / 4;
  };
  auto width = [](std::int64_t bytes) { return bytes == 4 || bytes == 8; };
  bool good = header.magic == expected.magic && header.version == expected.version &&
              header.key == key && within(header.documents) && within(header.samples) &&
              width(header.sample_bytes) && width(header.shuffle_bytes);
  if (!good) return nullptr;
  out->at = places_of(header);
  if (out->at.end != out->bytes.size()) return nullptr;
  if (hash_bytes(out->bytes.subspan(sizeof header), key) != header.checksum) return nullptr;
  return out;
}

void GptIndex::Storage::save(const std::string& path) const {
  Header complete = header;
  complete.checksum = hash_bytes(bytes.subspan(sizeof(Header)), header.key);
  StagedFile out(path);
  out.write_value(complete);
  out.write(bytes.subspan(sizeof(Header)));
  out.commit();
}

std::string gpt_index_file(PackedArray<std::int32_t> lengths, const GptIndexSpec& spec) {
  return file_name(key_of(lengths, spec));
}

GptIndex::GptIndex(PackedArray<std::int32_t> lengths, const GptIndexSpec& spec)
    : storage_(std::make_unique<Storage>(lengths, spec, 0)) {}

GptIndex::GptIndex(PackedArray<std::int32_t> lengths, const GptIndexSpec& spec,
                   const std::string& cache_folder) {
  std::uint64_t key = key_of(lengths, spec);
  std::string path = join_path(cache_folder, file_name(key));
  storage_ = Storage::load(path, key);
  if (storage_) return;
  if (path_exists(path)) log_warning(concat(path, ": is damaged; it is made again"));
  storage_ = std::make_unique<Storage>(lengths, spec, key);
  make_directories(cache_folder);
  storage_->save(path);
  // The file's pages are shared by all processes, those in memory are not.
  if (auto saved = Storage::load(path, key)) storage_ = std::move(saved);
}

GptIndex::GptIndex(GptIndex&&) noexcept = default;
GptIndex::~GptIndex() = default;

std::int64_t GptIndex::num_documents() const { return storage_->header.documents; }
std::int64_t GptIndex::num_samples() const { return storage_->header.samples; }

std::int64_t GptIndex::document(std::int64_t position) const {
  return storage_->entry(storage_->at.documents, position, 4);
}

SampleStart GptIndex::sample_start(std::int64_t sample) const {
  std::int64_t width = storage_->header.sample_bytes;
  return {storage_->entry(storage_->at.samples, 2 * sample, width),
          storage_->entry(storage_->at.samples, 2 * sample + 1, width)};
}

std::int64_t GptIndex::shuffled(std::int64_t index) const {
  return storage_->entry(storage_->at.shuffle, index, storage_->header.shuffle_bytes);
}

}  // namespace bev
