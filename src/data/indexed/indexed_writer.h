// Writer of Megatron's indexed datasets, byte-equal to its builder. Memory does not grow with the
// data: the parts of the index are kept in temporary files until commit().
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/indexed/indexed_dataset.h"
#include "data/indexed/staged_file.h"

namespace bev {

class IndexedDatasetWriter {
 public:
  IndexedDatasetWriter(const std::string& prefix, TokenType type, bool multimodal = false);

  // Adds a sequence to the current document. Throws Error(kInput) if a token does not fit the type.
  void add_sequence(std::span<const std::int32_t> tokens, std::int8_t mode = 0);
  // A document may have no sequences.
  void end_document();
  // Appends all documents of another pair; throws Error(kInput) unless type and multimodality are
  // equal.
  void add_dataset(const IndexedDataset& other);
  // Renames the pair to its final name, the index last. Without commit() nothing is left behind.
  void commit();

  std::int64_t num_documents() const { return num_documents_; }
  std::int64_t num_sequences() const { return num_sequences_; }

 private:
  void add_length(std::int32_t length);

  std::string prefix_;
  TokenType type_;
  bool multimodal_;
  StagedFile tokens_, index_;
  StagedFile lengths_, documents_, modes_;  // never committed
  std::vector<std::byte> row_;
  std::int64_t num_sequences_ = 0, num_documents_ = 0;
};

}  // namespace bev
