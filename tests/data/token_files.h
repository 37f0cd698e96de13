// Hand-written indexed datasets, field by field.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "tests/support/temp_folder.h"

namespace bev::test {

using Row = std::vector<std::int32_t>;

template <class T>
void put(std::string& out, T value) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  out.append(bytes, sizeof(T));
}

// Documents of sequences of 16-bit tokens.
struct Pair {
  std::string idx, bin;

  std::string write(const TempFolder& folder, const std::string& name) const {
    folder.write(name + ".idx", idx);
    folder.write(name + ".bin", bin);
    return folder.path(name);
  }
};

inline Pair pair_of(const std::vector<std::vector<Row>>& documents) {
  std::vector<std::int32_t> lengths;
  std::vector<std::int64_t> offsets, bounds{0};
  Pair pair;
  for (const std::vector<Row>& document : documents) {
    for (const Row& sequence : document) {
      lengths.push_back(static_cast<std::int32_t>(sequence.size()));
      offsets.push_back(static_cast<std::int64_t>(pair.bin.size()));
      for (std::int32_t token : sequence) put(pair.bin, static_cast<std::uint16_t>(token));
    }
    bounds.push_back(static_cast<std::int64_t>(lengths.size()));
  }
  pair.idx = std::string("MMIDIDX\0\0", 9);
  put(pair.idx, std::uint64_t{1});
  put(pair.idx, std::uint8_t{8});
  put(pair.idx, static_cast<std::uint64_t>(lengths.size()));
  put(pair.idx, static_cast<std::uint64_t>(bounds.size()));
  for (std::int32_t length : lengths) put(pair.idx, length);
  for (std::int64_t offset : offsets) put(pair.idx, offset);
  for (std::int64_t bound : bounds) put(pair.idx, bound);
  return pair;
}

// One document per length, with one sequence each; tokens are consecutive over all of them.
inline Pair counting_pair(const std::vector<std::int32_t>& lengths) {
  std::vector<std::vector<Row>> documents;
  std::int32_t next = 1;
  for (std::int32_t length : lengths) {
    Row row;
    for (std::int32_t i = 0; i < length; ++i) row.push_back(next++);
    documents.push_back({row});
  }
  return pair_of(documents);
}

}  // namespace bev::test
