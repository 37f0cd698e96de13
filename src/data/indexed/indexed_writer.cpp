#include "data/indexed/indexed_writer.h"

#include <unistd.h>

#include <cstring>
#include <limits>

#include "base/error.h"

namespace bev {

IndexedDatasetWriter::IndexedDatasetWriter(const std::string& prefix, TokenType type,
                                           bool multimodal)
    : prefix_(prefix),
      type_(type),
      multimodal_(multimodal),
      tokens_(tokens_path(prefix)),
      index_(index_path(prefix)),
      lengths_(prefix + ".lengths"),
      documents_(prefix + ".documents"),
      modes_(prefix + ".modes") {
  documents_.write_value(std::int64_t{0});
}

void IndexedDatasetWriter::add_length(std::int32_t length) {
  lengths_.write_value(length);
  ++num_sequences_;
}

void IndexedDatasetWriter::add_sequence(std::span<const std::int32_t> tokens, std::int8_t mode) {
  BEV_CHECK(tokens.size() <= std::numeric_limits<std::int32_t>::max(), ErrorKind::kInput, prefix_,
            ": a sequence of ", tokens.size(), " tokens is too long for the format");
  visit_token_type(type_, [&]<class T>(T) {
    row_.resize(tokens.size() * sizeof(T));
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      auto value = static_cast<T>(tokens[i]);
      BEV_CHECK(static_cast<std::int32_t>(value) == tokens[i], ErrorKind::kInput, prefix_,
                ": token ", tokens[i], " does not fit ", name_of(type_), " (token ", i,
                " of sequence ", num_sequences_, ")");
      std::memcpy(row_.data() + i * sizeof(T), &value, sizeof(T));
    }
  });
  tokens_.write(row_);
  add_length(static_cast<std::int32_t>(tokens.size()));
  if (multimodal_) modes_.write_value(mode);
}

void IndexedDatasetWriter::end_document() {
  documents_.write_value(num_sequences_);
  ++num_documents_;
}

void IndexedDatasetWriter::add_dataset(const IndexedDataset& other) {
  BEV_CHECK(other.type() == type_, ErrorKind::kInput, other.name(), ": holds ",
            name_of(other.type()), ", ", prefix_, " ", name_of(type_),
            "; pairs of one type can be joined");
  bool has_modes = other.modes().size() > 0 || other.num_sequences() == 0;
  BEV_CHECK(multimodal_ ? has_modes : other.modes().size() == 0, ErrorKind::kInput, other.name(),
            multimodal_ ? ": has no modes; " : ": has modes; ",
            "multimodal pairs can be joined with such only");
  tokens_.write(other.tokens());
  lengths_.write(other.lengths().bytes());
  modes_.write(other.modes().bytes());
  PackedArray<std::int64_t> bounds = other.documents();
  for (std::size_t i = 1; i < bounds.size(); ++i) {
    documents_.write_value(num_sequences_ + bounds[i]);
  }
  num_sequences_ += other.num_sequences();
  num_documents_ += other.num_documents();
}

void IndexedDatasetWriter::commit() {
  for (StagedFile* part : {&lengths_, &documents_, &modes_}) part->flush();
  MappedFile lengths(lengths_.temporary()), documents(documents_.temporary()),
      modes(modes_.temporary());
  index_.write(std::as_bytes(std::span(kIndexMagic)));
  index_.write_value(kIndexVersion);
  index_.write_value(static_cast<std::uint8_t>(type_));
  index_.write_value(num_sequences_);
  index_.write_value(num_documents_ + 1);
  index_.write(lengths.bytes());
  PackedArray<std::int32_t> counts(lengths.bytes().data(),
                                   static_cast<std::size_t>(num_sequences_));
  auto size = static_cast<std::int64_t>(size_of(type_));
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    index_.write_value(offset);
    offset += counts[i] * size;
  }
  index_.write(documents.bytes());
  index_.write(modes.bytes());
  index_.sync();
  // The index of an earlier pair must never be seen with the new tokens.
  ::unlink(index_path(prefix_).c_str());
  tokens_.commit();
  index_.commit();
}

}  // namespace bev
