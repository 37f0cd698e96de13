// Metadata of a Parquet file: the tree of columns, and where the row groups are.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/parquet/decompress.h"

namespace bev {

// Physical types, numbered as in the format.
enum class ParquetType : std::uint8_t {
  kBoolean = 0,
  kInt32 = 1,
  kInt64 = 2,
  kInt96 = 3,
  kFloat = 4,
  kDouble = 5,
  kByteArray = 6,
  kFixedByteArray = 7,
};
const char* name_of(ParquetType type);

enum class ParquetRepetition : std::uint8_t { kRequired = 0, kOptional = 1, kRepeated = 2 };

// A column, or a group of them (struct, list, map).
struct ParquetNode {
  std::string name;
  ParquetRepetition repetition = ParquetRepetition::kRequired;
  bool group = false;
  bool list = false;                       // a group annotated as list or map
  std::vector<ParquetNode> children;       // of a group
  ParquetType type{};                      // of a column
  std::size_t column = 0;                  // number of the (first) column in the file
  std::uint32_t max_def = 0, max_rep = 0;  // levels at which this node has a value
};

// Pages of a column in a row group.
struct ParquetChunk {
  ParquetType type{};
  ParquetCodec codec{};
  std::int64_t num_values = 0;
  std::int64_t offset = 0, bytes = 0;  // in the file
};

struct ParquetRowGroup {
  std::int64_t num_rows = 0;
  std::vector<ParquetChunk> chunks;  // one per column
};

struct ParquetSchema {
  ParquetNode root;
  std::vector<ParquetRowGroup> row_groups;
};

// Reads the metadata at the end of the file. Throws Error(kInput) if this is not Parquet, is
// damaged, or encrypted.
ParquetSchema read_parquet_schema(std::string_view file);

}  // namespace bev
