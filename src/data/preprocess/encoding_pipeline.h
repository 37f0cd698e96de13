// Parallel tokenization pipeline: one thread reads records in batches, workers encode them, and the
// caller receives them in input order, whatever the number of workers. Memory in flight is bounded:
//
//   source -> [batches, bounded] -> workers -> [batches in order] -> next()
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "data/preprocess/record_encoder.h"
#include "data/preprocess/text_source.h"

namespace bev {

struct EncodedBatch {
  std::vector<Record> records;         // texts are cleared
  std::vector<EncodedRecord> encoded;  // one per record
  std::int64_t position = 0;           // source position after these records
};

struct PipelineLimits {
  std::int64_t workers = 1;
  std::int64_t batch_bytes = 1 << 18;       // a batch is closed at this much text
  std::int64_t under_way_bytes = 16 << 20;  // text in flight; a longer document goes alone
};

class EncodingPipeline {
 public:
  // All three must outlive the pipeline.
  EncodingPipeline(TextSource& source, std::span<const InputFile> files,
                   const RecordEncoder& encoder, const PipelineLimits& limits);
  // Stops its threads early and joins them.
  ~EncodingPipeline();
  EncodingPipeline(const EncodingPipeline&) = delete;
  EncodingPipeline& operator=(const EncodingPipeline&) = delete;

  // nullopt at the end. An error of reading or encoding is thrown after everything that precedes it
  // in the input.
  std::optional<EncodedBatch> next();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bev
