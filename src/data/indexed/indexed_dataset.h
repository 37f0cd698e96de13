// Megatron's indexed dataset: PREFIX.bin holds only tokens, the index file PREFIX.idx locates
// sequences and documents. Little-endian, no padding:
//
//   "MMIDIDX\0\0" | u64 version 1 | u8 type | u64 sequences n | u64 d = documents + 1
//   i32 length[n] | i64 byte offset[n] | i64 first sequence[d] | i8 mode[n], if multimodal
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/file.h"
#include "data/indexed/packed_array.h"
#include "data/indexed/token_type.h"
#include "data/token_sequences.h"

namespace bev {

inline constexpr std::string_view kIndexMagic{"MMIDIDX\0\0", 9};
inline constexpr std::uint64_t kIndexVersion = 1;
inline constexpr std::size_t kIndexHeaderBytes = 34;

std::string index_path(const std::string& prefix);
std::string tokens_path(const std::string& prefix);

// Memory-mapped pair of files. The constructor checks every entry of the index: a truncated,
// corrupt or mismatched pair is an Error(kInput) naming file, entry and values, and reads stay
// inside the files. If a file is truncated in place later, the access raises SIGBUS, which the
// handler of app/sigbus_handler.h reports; our own writers replace files by renaming.
class IndexedDataset : public TokenSequences {
 public:
  explicit IndexedDataset(const std::string& prefix);

  const std::string& name() const override { return prefix_; }
  TokenType type() const { return type_; }
  std::int64_t num_sequences() const { return static_cast<std::int64_t>(lengths_.size()); }
  std::int64_t num_documents() const { return static_cast<std::int64_t>(documents_.size()) - 1; }
  std::int64_t num_tokens() const;
  PackedArray<std::int32_t> lengths() const override { return lengths_; }
  // First sequence of each document, and the end.
  PackedArray<std::int64_t> documents() const { return documents_; }
  // One per sequence; empty unless multimodal.
  PackedArray<std::int8_t> modes() const { return modes_; }
  std::span<const std::byte> tokens() const { return tokens_.bytes(); }

  // Throws Error(kInput) for floating-point data and for values beyond 32 bits.
  void read(std::int64_t sequence, std::int64_t offset,
            std::span<std::int32_t> tokens) const override;

 private:
  void read_header();
  void check_sequences() const;
  void check_documents() const;

  std::string prefix_;
  MappedFile index_, tokens_;
  TokenType type_ = TokenType::kI32;
  PackedArray<std::int32_t> lengths_;
  PackedArray<std::int64_t> offsets_, documents_;
  PackedArray<std::int8_t> modes_;
};

}  // namespace bev
