// Reading, tokenizing and handing over at the same time: one thread reads records in batches,
// workers encode them, and the caller takes them in the order of the input, whatever the number of
// workers. So much of the input is under way at once and no more:
//
//   source -> [batches, bounded] -> workers -> [batches in order] -> next()
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "data/record_encoder.h"
#include "data/text_source.h"

namespace bev {

struct EncodedBatch {
  std::vector<Record> records;         // without their texts
  std::vector<EncodedRecord> encoded;  // one for each
  std::int64_t position = 0;           // of the source after them
};

struct PipelineLimits {
  std::int64_t workers = 1;
  std::int64_t batch_bytes = 1 << 18;       // a batch is closed when it has so much text
  std::int64_t under_way_bytes = 16 << 20;  // a longer document goes alone
};

class EncodingPipeline {
 public:
  // All three must outlive it.
  EncodingPipeline(TextSource& source, std::span<const InputFile> files,
                   const RecordEncoder& encoder, const PipelineLimits& limits);
  // Waits for its threads, which stop early.
  ~EncodingPipeline();
  EncodingPipeline(const EncodingPipeline&) = delete;
  EncodingPipeline& operator=(const EncodingPipeline&) = delete;

  // Nothing at the end. An error of reading or encoding is thrown after all that precedes it in the
  // input.
  std::optional<EncodedBatch> next();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bev
