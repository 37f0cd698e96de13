// Interface of the readers behind TextSource: the records of one range of a file, in order.
#pragma once

#include <cstdint>
#include <memory>

#include "data/preprocess/text_source.h"

namespace bev {

class ChunkedBytes;

class RecordReader {
 public:
  virtual ~RecordReader() = default;
  // Fills file, line, text, ends_document and problem of the record; false at the end. Throws
  // Error(kInput) if the file cannot be read.
  virtual bool next(Record& record) = 0;
  // Bytes of the file consumed so far; for progress.
  virtual std::int64_t position() const = 0;
};

// The elements of a JSON array, each a record, numbered by the line where it begins. `bytes` is at
// the start of the array, or at white space before it.
std::unique_ptr<RecordReader> open_json_array(ChunkedBytes bytes, std::size_t file,
                                              const TextOptions& options);

}  // namespace bev
