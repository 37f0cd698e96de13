// Writes Megatron's token files, byte for byte as its builder does. Memory does not grow with the
// data: the parts of the index are kept in files too until the end.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/indexed_dataset.h"
#include "data/staged_file.h"

namespace bev {

class IndexedDatasetWriter {
 public:
  IndexedDatasetWriter(const std::string& prefix, TokenType type, bool multimodal = false);

  // A sequence of the document under way. Error(kInput) when a token does not fit the type.
  void add_sequence(std::span<const std::int32_t> tokens, std::int8_t mode = 0);
  // A document may have no sequence at all.
  void end_document();
  // All documents of another pair; Error(kInput) unless type and multimodality are the same.
  void add_dataset(const IndexedDataset& other);
  // Shows the pair under its name, the index last. Without it nothing is left behind.
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
