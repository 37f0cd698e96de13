#include "data/parquet/parquet_schema.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/error.h"
#include "data/parquet/thrift.h"

namespace bev {

namespace {

constexpr std::string_view kMagic = "PAR1", kEncryptedMagic = "PARE";
constexpr int kMostLevels = 32;

void check(bool fine, const char* what) {
  BEV_CHECK(fine, ErrorKind::kInput, "its metadata is broken: ", what);
}

// A node of the schema as the file lists it: depth first.
struct SchemaElement {
  std::string name;
  std::optional<std::int64_t> type;
  std::int64_t repetition = 0, num_children = 0;
  bool list = false;
};

SchemaElement read_element(ThriftReader& in) {
  enum : std::int64_t {
    kType = 1,
    kRepetition = 3,
    kName = 4,
    kChildren = 5,
    kConverted = 6,
    kLogical = 10
  };
  SchemaElement out;
  in.read_struct([&](const ThriftField& field) {
    if (field.id == kType) {
      out.type = in.read_int(field);
    } else if (field.id == kRepetition) {
      out.repetition = in.read_int(field);
    } else if (field.id == kName) {
      out.name = in.read_text(field);
    } else if (field.id == kChildren) {
      out.num_children = in.read_int(field);
    } else if (field.id == kConverted) {
      constexpr std::int64_t kMap = 1, kList = 3;
      std::int64_t converted = in.read_int(field);
      out.list = out.list || (converted >= kMap && converted <= kList);
    } else if (field.id == kLogical && field.type == ThriftType::kStruct) {
      // A union: the only field that is set tells the type.
      in.read_struct([&](const ThriftField& kind) {
        constexpr std::int64_t kMap = 2, kList = 3;
        out.list = out.list || kind.id == kMap || kind.id == kList;
        return false;
      });
    } else {
      return false;
    }
    return true;
  });
  return out;
}

// Builds the tree from the list of its elements.
class TreeBuilder {
 public:
  explicit TreeBuilder(const std::vector<SchemaElement>& elements) : elements_(elements) {}

  ParquetNode build() {
    check(!elements_.empty() && !elements_[0].type, "there is no schema");
    ParquetNode root = node(nullptr, 0);
    check(at_ == elements_.size(), "the schema has more elements than its groups");
    return root;
  }
  std::size_t columns() const { return columns_; }

 private:
  ParquetNode node(const ParquetNode* parent, int level) {
    check(at_ < elements_.size(), "a group of the schema lacks a child");
    check(level <= kMostLevels, "groups nest too deep");
    const SchemaElement& element = elements_[at_++];
    ParquetNode out;
    out.name = element.name;
    out.group = !element.type;
    out.list = element.list;
    out.column = columns_;
    if (parent != nullptr) {
      check(element.repetition >= 0 && element.repetition <= 2, "a column has no repetition");
      out.repetition = static_cast<ParquetRepetition>(element.repetition);
      out.max_def = parent->max_def + (out.repetition != ParquetRepetition::kRequired ? 1 : 0);
      out.max_rep = parent->max_rep + (out.repetition == ParquetRepetition::kRepeated ? 1 : 0);
    }
    if (!out.group) {
      check(*element.type >= 0 && *element.type <= 7, "a column has an unknown type");
      out.type = static_cast<ParquetType>(*element.type);
      ++columns_;
      return out;
    }
    check(element.num_children > 0 || parent == nullptr, "a group has no columns");
    for (std::int64_t i = 0; i < element.num_children; ++i) {
      out.children.push_back(node(&out, level + 1));
    }
    return out;
  }

  const std::vector<SchemaElement>& elements_;
  std::size_t at_ = 0, columns_ = 0;
};

ParquetChunk read_chunk_metadata(ThriftReader& in) {
  enum : std::int64_t {
    kType = 1,
    kCodec = 4,
    kValues = 5,
    kBytes = 7,
    kData = 9,
    kDictionary = 11
  };
  ParquetChunk out;
  std::int64_t data = 0, dictionary = 0;
  in.read_struct([&](const ThriftField& field) {
    if (field.id == kType) {
      out.type = static_cast<ParquetType>(in.read_int(field));
    } else if (field.id == kCodec) {
      out.codec = static_cast<ParquetCodec>(in.read_int(field));
    } else if (field.id == kValues) {
      out.num_values = in.read_int(field);
    } else if (field.id == kBytes) {
      out.bytes = in.read_int(field);
    } else if (field.id == kData) {
      data = in.read_int(field);
    } else if (field.id == kDictionary) {
      dictionary = in.read_int(field);
    } else {
      return false;
    }
    return true;
  });
  // Some writers leave the offset of an absent dictionary at 0.
  out.offset = dictionary > 0 ? std::min(data, dictionary) : data;
  return out;
}

ParquetChunk read_chunk(ThriftReader& in) {
  enum : std::int64_t { kPath = 1, kMetadata = 3, kCrypto = 8 };
  std::optional<ParquetChunk> out;
  in.read_struct([&](const ThriftField& field) {
    BEV_CHECK(field.id != kPath, ErrorKind::kInput,
              "its columns are in other files, which is not supported");
    BEV_CHECK(field.id != kCrypto, ErrorKind::kInput, "it is encrypted, which is not supported");
    if (field.id != kMetadata || field.type != ThriftType::kStruct) return false;
    out = read_chunk_metadata(in);
    return true;
  });
  check(out.has_value(), "a column has no metadata");
  return *out;
}

ParquetRowGroup read_row_group(ThriftReader& in) {
  enum : std::int64_t { kColumns = 1, kRows = 3 };
  ParquetRowGroup out;
  in.read_struct([&](const ThriftField& field) {
    if (field.id == kColumns) {
      in.read_list(field, ThriftType::kStruct, [&] { out.chunks.push_back(read_chunk(in)); });
    } else if (field.id == kRows) {
      out.num_rows = in.read_int(field);
    } else {
      return false;
    }
    return true;
  });
  return out;
}

std::string_view footer_of(std::string_view file) {
  constexpr std::size_t kTail = 8;  // length and magic
  bool encrypted = file.starts_with(kEncryptedMagic) || file.ends_with(kEncryptedMagic);
  BEV_CHECK(!encrypted, ErrorKind::kInput, "it is encrypted, which is not supported");
  bool archive = file.starts_with("\x1f\x8b") || file.starts_with("\x28\xb5\x2f\xfd");
  BEV_CHECK(!archive, ErrorKind::kInput,
            "the Parquet file is compressed as a whole, and it is read from its end; unpack it");
  BEV_CHECK(file.starts_with(kMagic), ErrorKind::kInput, "this is no Parquet file");
  BEV_CHECK(file.size() >= kMagic.size() + kTail && file.ends_with(kMagic), ErrorKind::kInput,
            "the end of the Parquet file is missing; it was cut");
  std::uint32_t bytes = 0;
  std::memcpy(&bytes, file.data() + file.size() - kTail, sizeof(bytes));
  check(bytes <= file.size() - kTail - kMagic.size(), "it is longer than the file");
  return file.substr(file.size() - kTail - bytes, bytes);
}

void check_row_groups(const ParquetSchema& schema, std::size_t columns, std::size_t file_bytes) {
  for (const ParquetRowGroup& group : schema.row_groups) {
    check(group.num_rows >= 0, "a row group has a negative number of rows");
    check(group.chunks.size() == columns, "a row group has another number of columns");
    for (const ParquetChunk& chunk : group.chunks) {
      auto size = static_cast<std::int64_t>(file_bytes);
      bool inside = chunk.offset >= 0 && chunk.bytes >= 0 && chunk.offset <= size &&
                    chunk.bytes <= size - chunk.offset;
      check(inside && chunk.num_values >= 0, "a column lies outside of the file");
    }
  }
}

}  // namespace

const char* name_of(ParquetType type) {
  constexpr const char* kNames[] = {"BOOLEAN", "INT32",  "INT64",      "INT96",
                                    "FLOAT",   "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"};
  return kNames[static_cast<std::size_t>(type)];
}

ParquetSchema read_parquet_schema(std::string_view file) {
  enum : std::int64_t { kSchema = 2, kRowGroups = 4 };
  ThriftReader in(footer_of(file));
  std::vector<SchemaElement> elements;
  ParquetSchema out;
  in.read_struct([&](const ThriftField& field) {
    if (field.id == kSchema) {
      in.read_list(field, ThriftType::kStruct, [&] { elements.push_back(read_element(in)); });
    } else if (field.id == kRowGroups) {
      in.read_list(field, ThriftType::kStruct,
                   [&] { out.row_groups.push_back(read_row_group(in)); });
    } else {
      return false;
    }
    return true;
  });
  TreeBuilder tree(elements);
  out.root = tree.build();
  check_row_groups(out, tree.columns(), file.size());
  return out;
}

}  // namespace bev
