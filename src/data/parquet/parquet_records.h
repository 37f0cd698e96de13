// Rows of Parquet files as records: each row is an object of JSON with the wanted columns, so that
// everything behind reads them like JSON lines. Memory holds a page of each wanted column.
#pragma once

#include <cstddef>
#include <memory>

#include "data/preprocess/record_reader.h"

namespace bev {

// Columns may be texts, numbers, truth values, structs and lists of them; plain and dictionary
// pages of both versions, uncompressed or with snappy, gzip or zstd. Null members of structs are
// left out. Throws Error(kInput) naming the file if it is damaged, has none of options.json_keys,
// or something that is not supported.
std::unique_ptr<RecordReader> open_parquet_records(const InputFile& input, std::size_t file,
                                                   const TextOptions& options);

}  // namespace bev
