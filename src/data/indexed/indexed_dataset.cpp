#include "data/indexed/indexed_dataset.h"

#include <cstring>
#include <type_traits>

#include "base/error.h"
#include "base/file.h"
#include "base/json_check.h"

namespace bev {

namespace {

template <class T>
T read_value(std::span<const std::byte> bytes, std::size_t at) {
  return PackedArray<T>(bytes.data() + at, 1)[0];
}

// Converts in blocks of fixed size, which the compiler vectorises.
template <class T>
void convert(const std::byte* from, std::span<std::int32_t> to) {
  constexpr std::size_t kBlock = 32;
  std::size_t i = 0;
  for (; i + kBlock <= to.size(); i += kBlock) {
    T block[kBlock];
    std::memcpy(block, from + i * sizeof(T), sizeof block);
    for (std::size_t k = 0; k < kBlock; ++k) to[i + k] = static_cast<std::int32_t>(block[k]);
  }
  PackedArray<T> stored(from, to.size());
  for (; i < to.size(); ++i) to[i] = static_cast<std::int32_t>(stored[i]);
}

std::string existing_index(const std::string& prefix) {
  std::string path = index_path(prefix);
  BEV_CHECK(path_exists(path), ErrorKind::kInput, path,
            ": no such file; token files are named without their endings .bin and .idx, as in "
            "data/books_text_document, and weights stand before all of them or before none");
  return path;
}

}  // namespace

std::string index_path(const std::string& prefix) { return prefix + ".idx"; }
std::string tokens_path(const std::string& prefix) { return prefix + ".bin"; }

IndexedDataset::IndexedDataset(const std::string& prefix)
    : prefix_(prefix), index_(existing_index(prefix)), tokens_(tokens_path(prefix)) {
  read_header();
  check_sequences();
  check_documents();
}

void IndexedDataset::read_header() {
  std::span<const std::byte> bytes = index_.bytes();
  const std::string& path = index_.path();
  BEV_CHECK(bytes.size() >= kIndexHeaderBytes, ErrorKind::kInput, path, ": ", bytes.size(),
            " bytes are too short for a header of ", kIndexHeaderBytes);
  std::string_view magic(reinterpret_cast<const char*>(bytes.data()), kIndexMagic.size());
  BEV_CHECK(magic == kIndexMagic, ErrorKind::kInput, path, ": begins with ", quote(magic),
            ", not with MMIDIDX: it is no index of token files");
  auto version = read_value<std::uint64_t>(bytes, 9);
  BEV_CHECK(version == kIndexVersion, ErrorKind::kInput, path, ": version ", version,
            " (byte 9); only 1 is known");
  auto code = read_value<std::uint8_t>(bytes, 17);
  std::optional<TokenType> type = token_type_of(code);
  BEV_CHECK(type, ErrorKind::kInput, path, ": type code ", code, " (byte 17) is not one of 1 to 8");
  type_ = *type;
  auto sequences = read_value<std::uint64_t>(bytes, 18);
  auto documents = read_value<std::uint64_t>(bytes, 26);
  std::size_t body = bytes.size() - kIndexHeaderBytes;
  // Each bound prevents overflow of the products below.
  bool possible = documents >= 1 && documents <= body / 8 && sequences <= body / 12;
  std::size_t plain = possible ? 12 * sequences + 8 * documents : 0;
  BEV_CHECK(possible && (body == plain || body == plain + sequences), ErrorKind::kInput, path, ": ",
            bytes.size(), " bytes do not hold an index of ", sequences, " sequences and ",
            documents, " document bounds (bytes 18 and 26): it is cut or damaged");
  const std::byte* at = bytes.data() + kIndexHeaderBytes;
  lengths_ = {at, sequences};
  offsets_ = {at += 4 * sequences, sequences};
  documents_ = {at += 8 * sequences, documents};
  if (body != plain) modes_ = {at + 8 * documents, sequences};
}

// Sequences must be contiguous in the .bin file, up to its end.
void IndexedDataset::check_sequences() const {
  auto size = static_cast<std::int64_t>(size_of(type_));
  auto bytes = static_cast<std::int64_t>(tokens_.bytes().size());
  std::int64_t end = 0;
  for (std::size_t i = 0; i < lengths_.size(); ++i) {
    std::int64_t length = lengths_[i], offset = offsets_[i];
    bool good = length >= 0 && offset == end && length <= (bytes - end) / size;
    if (good) [[likely]] {
      end += length * size;
      continue;
    }
    BEV_CHECK(length >= 0, ErrorKind::kInput, index_.path(), ": sequence ", i, " has length ",
              length);
    BEV_CHECK(offset == end, ErrorKind::kInput, index_.path(), ": sequence ", i, " begins at byte ",
              offset, " of the .bin file; the one before ends at ", end);
    BEV_FAIL(ErrorKind::kInput, tokens_.path(), ": ", bytes, " bytes end within sequence ", i,
             " of the index, ", length, " tokens of type ", name_of(type_), " from byte ", end,
             ": it is cut or belongs to another index");
  }
  BEV_CHECK(end == bytes, ErrorKind::kInput, tokens_.path(), ": ", bytes,
            " bytes, but the sequences of the index end at ", end, ": it belongs to another index");
}

void IndexedDataset::check_documents() const {
  const std::string& path = index_.path();
  BEV_CHECK(documents_[0] == 0, ErrorKind::kInput, path, ": document 0 begins with sequence ",
            documents_[0], ", not 0");
  for (std::size_t i = 1; i < documents_.size(); ++i) {
    BEV_CHECK(documents_[i - 1] <= documents_[i] && documents_[i] <= num_sequences(),
              ErrorKind::kInput, path, ": document ", i - 1, " has the sequences [",
              documents_[i - 1], ", ", documents_[i], ") of ", num_sequences());
  }
  std::int64_t last = documents_[documents_.size() - 1];
  BEV_CHECK(last == num_sequences(), ErrorKind::kInput, path, ": the documents end at sequence ",
            last, " of ", num_sequences());
}

std::int64_t IndexedDataset::num_tokens() const {
  return static_cast<std::int64_t>(tokens_.bytes().size() / size_of(type_));
}

void IndexedDataset::read(std::int64_t sequence, std::int64_t offset,
                          std::span<std::int32_t> tokens) const {
  auto index = static_cast<std::size_t>(sequence);
  auto count = static_cast<std::int64_t>(tokens.size());
  BEV_CHECK(sequence >= 0 && sequence < num_sequences() && offset >= 0 &&
                offset <= lengths_[index] && count <= lengths_[index] - offset,
            ErrorKind::kInternal, prefix_, ": tokens [", offset, ", ", offset + count,
            ") of sequence ", sequence);
  visit_token_type(type_, [&]<class T>(T) {
    if constexpr (std::is_integral_v<T>) {
      const std::byte* from =
          tokens_.bytes().data() + offsets_[index] + offset * static_cast<std::int64_t>(sizeof(T));
      convert<T>(from, tokens);
      if constexpr (sizeof(T) > 4) {
        PackedArray<T> stored(from, tokens.size());
        for (std::size_t i = 0; i < tokens.size(); ++i) {
          BEV_CHECK(stored[i] == tokens[i], ErrorKind::kInput, tokens_.path(), ": token ",
                    offset + static_cast<std::int64_t>(i), " of sequence ", sequence, " is ",
                    stored[i], ", beyond 32 bits");
        }
      }
    } else {
      BEV_FAIL(ErrorKind::kInput, prefix_, ": ", name_of(type_), " numbers are not tokens");
    }
  });
}

}  // namespace bev
