// Encoding of the records of files on all cores.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "data/preprocess/text_source.h"

namespace bev {

// How objects of JSON with any of these keys are read, as lines, arrays or Parquet.
TextOptions record_options(std::vector<std::string> keys);
// "chats.jsonl, line 3".
std::string place_of(const Record& record, const InputFile& file);

// Calls grow(count) for every block of records read, in order, then encode(index, record, place)
// for each of them on some thread, where `index` counts all records. The first record that fails is
// reported, whatever the threads do. `what` names the records in the log.
void encode_records(
    const std::vector<std::string>& names, const TextOptions& text, const char* what,
    FunctionRef<void(std::size_t count)> grow,
    FunctionRef<void(std::size_t index, const Record& record, const std::string& place)> encode);

}  // namespace bev
