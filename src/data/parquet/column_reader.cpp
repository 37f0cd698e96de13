#include "data/parquet/column_reader.h"

#include <zlib.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <optional>

#include "base/error.h"
#include "base/json_check.h"
#include "data/parquet/thrift.h"

namespace bev {

namespace {

enum Encoding : std::int64_t { kPlain = 0, kPlainDictionary = 2, kRle = 3, kRleDictionary = 8 };

constexpr std::int64_t kMostPageBytes = std::int64_t{1} << 29;

std::string encoding_name(std::int64_t encoding) {
  constexpr std::array<const char*, 10> kNames = {
      "PLAIN",          "GROUP_VAR_INT",       "PLAIN_DICTIONARY",        "RLE",
      "BIT_PACKED",     "DELTA_BINARY_PACKED", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY",
      "RLE_DICTIONARY", "BYTE_STREAM_SPLIT"};
  bool known = encoding >= 0 && encoding < static_cast<std::int64_t>(kNames.size());
  return known ? kNames[static_cast<std::size_t>(encoding)] : concat("number ", encoding);
}

[[noreturn]] void fail_encoding(std::int64_t encoding) {
  BEV_FAIL(ErrorKind::kInput, "it has the encoding ", encoding_name(encoding),
           ", which is not supported; write it with plain or dictionary encoding");
}

void check(bool fine, const char* what) {
  BEV_CHECK(fine, ErrorKind::kInput, "a page is damaged: ", what);
}

void append_json_text(std::string& out, std::string_view text) {
  constexpr const char* kDigits = "0123456789abcdef";
  out.push_back('"');
  for (char c : text) {
    auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out.push_back('\\');
      out.push_back(c);
    } else if (byte < 0x20) {
      out += "\\u00";
      out.push_back(kDigits[byte >> 4]);
      out.push_back(kDigits[byte & 0xf]);
    } else {
      out.push_back(c);
    }
  }
  out.push_back('"');
}

template <class T>
T number_of(std::string_view bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof(T));
  return value;
}

void append_real(std::string& out, double value) {
  if (std::isfinite(value)) {
    append_text(out, value);
  } else {
    out += "null";
  }
}

void append_json(std::string& out, ParquetType type, std::string_view value) {
  switch (type) {
    case ParquetType::kBoolean:
      out += value[0] != 0 ? "true" : "false";
      return;
    case ParquetType::kInt32:
      return append_text(out, number_of<std::int32_t>(value));
    case ParquetType::kInt64:
      return append_text(out, number_of<std::int64_t>(value));
    case ParquetType::kFloat:
      return append_real(out, number_of<float>(value));
    case ParquetType::kDouble:
      return append_real(out, number_of<double>(value));
    default:
      return append_json_text(out, value);
  }
}

// Bytes of a plain value; 0: they are counted in front of it.
std::size_t value_bytes(ParquetType type) {
  if (type == ParquetType::kByteArray) return 0;
  return type == ParquetType::kInt32 || type == ParquetType::kFloat ? 4 : 8;
}

}  // namespace

// Fields of all kinds of pages.
struct ColumnReader::PageHeader {
  enum Type : std::int64_t { kData = 0, kIndex = 1, kDictionary = 2, kDataV2 = 3 };
  std::int64_t type = -1, uncompressed_bytes = -1, compressed_bytes = -1;
  std::optional<std::int64_t> crc;
  std::int64_t num_values = -1, encoding = -1;
  std::int64_t def_encoding = kRle, rep_encoding = kRle;  // version 1
  std::int64_t def_bytes = 0, rep_bytes = 0;              // version 2
  bool compressed = true;                                 // version 2
};

ColumnReader::ColumnReader(std::string_view file, const ParquetChunk& chunk,
                           const ParquetNode& node)
    : chunk_(chunk),
      node_(node),
      bytes_(file.substr(static_cast<std::size_t>(chunk.offset),
                         static_cast<std::size_t>(chunk.bytes))),
      values_left_(chunk.num_values) {
  BEV_CHECK(node.type != ParquetType::kInt96 && node.type != ParquetType::kFixedByteArray,
            ErrorKind::kInput, "the column ", quote(node.name, 40), " has the type ",
            name_of(node.type), ", which is not supported; leave it out");
  check(chunk.type == node.type, "it has another type than the schema says");
}

ColumnReader::PageHeader ColumnReader::read_header() {
  enum : std::int64_t {
    kType = 1,
    kUncompressed,
    kCompressed,
    kCrc,
    kData,
    kIndex,
    kDictionary,
    kV2
  };
  PageHeader out;
  ThriftReader in(bytes_.substr(at_));
  // A dictionary has the first two fields, data the next two as well.
  auto read_data = [&](std::int64_t fields) {
    in.read_struct([&](const ThriftField& field) {
      std::array<std::int64_t*, 5> places = {nullptr, &out.num_values, &out.encoding,
                                             &out.def_encoding, &out.rep_encoding};
      bool known = field.id >= 1 && field.id <= fields;
      if (known) *places[static_cast<std::size_t>(field.id)] = in.read_int(field);
      return known;
    });
  };
  auto read_v2 = [&] {
    enum : std::int64_t {
      kValues = 1,
      kEncoding = 4,
      kDefBytes = 5,
      kRepBytes = 6,
      kIsCompressed = 7
    };
    in.read_struct([&](const ThriftField& field) {
      if (field.id == kIsCompressed) {
        out.compressed = in.read_bool(field);
        return true;
      }
      std::int64_t* place = field.id == kValues     ? &out.num_values
                            : field.id == kEncoding ? &out.encoding
                            : field.id == kDefBytes ? &out.def_bytes
                            : field.id == kRepBytes ? &out.rep_bytes
                                                    : nullptr;
      if (place != nullptr) *place = in.read_int(field);
      return place != nullptr;
    });
  };
  in.read_struct([&](const ThriftField& field) {
    if (field.id == kType) {
      out.type = in.read_int(field);
    } else if (field.id == kUncompressed) {
      out.uncompressed_bytes = in.read_int(field);
    } else if (field.id == kCompressed) {
      out.compressed_bytes = in.read_int(field);
    } else if (field.id == kCrc) {
      out.crc = in.read_int(field);
    } else if (field.id == kData || field.id == kDictionary) {
      read_data(field.id == kData ? 4 : 2);
    } else if (field.id == kV2) {
      read_v2();
    } else {
      return false;
    }
    return true;
  });
  at_ += in.position();
  return out;
}

bool ColumnReader::load_page() {
  while (page_left_ == 0) {
    if (values_left_ == 0) return false;
    check(at_ < bytes_.size(), "the column ends early");
    PageHeader header = read_header();
    check(header.compressed_bytes >= 0 &&
              header.compressed_bytes <= static_cast<std::int64_t>(bytes_.size() - at_),
          "it is longer than its column");
    check(header.uncompressed_bytes >= 0, "its size is impossible");
    BEV_CHECK(header.uncompressed_bytes <= kMostPageBytes, ErrorKind::kInput, "a page has ",
              header.uncompressed_bytes, " bytes; at most ", kMostPageBytes, " are supported");
    std::string_view bytes = bytes_.substr(at_, static_cast<std::size_t>(header.compressed_bytes));
    at_ += bytes.size();
    if (header.crc) {
      auto sum = crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size());
      check(static_cast<std::uint32_t>(*header.crc) == static_cast<std::uint32_t>(sum),
            "its checksum is wrong");
    }
    if (header.type == PageHeader::kIndex) continue;
    if (header.type == PageHeader::kDictionary) {
      load_dictionary(header, bytes);
      continue;
    }
    check(header.num_values >= 0 && header.num_values <= values_left_,
          "it has more values than its column");
    if (header.type == PageHeader::kData) {
      load_data(header, bytes);
    } else {
      check(header.type == PageHeader::kDataV2, "it is of an unknown kind");
      load_data_v2(header, bytes);
    }
    page_left_ = header.num_values;
    values_left_ -= page_left_;
  }
  return true;
}

void ColumnReader::load_dictionary(const PageHeader& header, std::string_view bytes) {
  if (header.encoding != kPlain && header.encoding != kPlainDictionary) {
    fail_encoding(header.encoding);
  }
  check(node_.type != ParquetType::kBoolean, "truth values have no dictionary");
  dictionary_.clear();
  dictionary_bytes_ =
      decompress_page(chunk_.codec, bytes, static_cast<std::size_t>(header.uncompressed_bytes));
  std::string_view rest = dictionary_bytes_;
  for (std::int64_t i = 0; i < header.num_values; ++i) dictionary_.push_back(next_plain(rest));
}

// Levels of a page of version 1, with their length in front.
std::string_view ColumnReader::take_levels(std::string_view& bytes) const {
  check(bytes.size() >= 4, "its levels are cut");
  auto size = number_of<std::uint32_t>(bytes);
  bytes.remove_prefix(4);
  check(size <= bytes.size(), "its levels are cut");
  std::string_view levels = bytes.substr(0, size);
  bytes.remove_prefix(size);
  return levels;
}

void ColumnReader::load_data(const PageHeader& header, std::string_view bytes) {
  page_ = decompress_page(chunk_.codec, bytes, static_cast<std::size_t>(header.uncompressed_bytes));
  std::string_view rest = page_;
  if (node_.max_rep > 0) {
    if (header.rep_encoding != kRle) fail_encoding(header.rep_encoding);
    reps_ =
        RleDecoder(take_levels(rest), static_cast<std::uint32_t>(std::bit_width(node_.max_rep)));
  }
  if (node_.max_def > 0) {
    if (header.def_encoding != kRle) fail_encoding(header.def_encoding);
    defs_ =
        RleDecoder(take_levels(rest), static_cast<std::uint32_t>(std::bit_width(node_.max_def)));
  }
  start_values(header.encoding, rest);
}

// The levels of version 2 are in front, and never compressed.
void ColumnReader::load_data_v2(const PageHeader& header, std::string_view bytes) {
  auto size = static_cast<std::int64_t>(bytes.size());
  bool fits = header.rep_bytes >= 0 && header.def_bytes >= 0 && header.rep_bytes <= size &&
              header.def_bytes <= size - header.rep_bytes;
  check(fits, "its levels are cut");
  auto reps = static_cast<std::size_t>(header.rep_bytes);
  auto levels = static_cast<std::size_t>(header.rep_bytes + header.def_bytes);
  auto whole = static_cast<std::size_t>(header.uncompressed_bytes);
  check(levels <= whole, "its size is impossible");
  reps_ =
      RleDecoder(bytes.substr(0, reps), static_cast<std::uint32_t>(std::bit_width(node_.max_rep)));
  defs_ = RleDecoder(bytes.substr(reps, levels - reps),
                     static_cast<std::uint32_t>(std::bit_width(node_.max_def)));
  ParquetCodec codec = header.compressed ? chunk_.codec : ParquetCodec::kUncompressed;
  // A page without values may have no compressed bytes at all.
  page_ = whole == levels ? std::string()
                          : decompress_page(codec, bytes.substr(levels), whole - levels);
  start_values(header.encoding, page_);
}

void ColumnReader::start_values(std::int64_t encoding, std::string_view values) {
  values_ = values;
  bits_used_ = 0;
  if (encoding == kPlain) {
    values_kind_ = Values::kPlain;
  } else if (encoding == kPlainDictionary || encoding == kRleDictionary) {
    values_kind_ = Values::kDictionary;
    // A page of nulls may be empty.
    std::uint32_t width = values.empty() ? 0 : static_cast<unsigned char>(values[0]);
    check(width <= 32, "its indices are too wide");
    indices_ = RleDecoder(values.empty() ? values : values.substr(1), width);
  } else if (encoding == kRle && node_.type == ParquetType::kBoolean) {
    values_kind_ = Values::kRunLength;
    indices_ = RleDecoder(values.empty() ? values : take_levels(values), 1);
  } else {
    fail_encoding(encoding);
  }
}

std::string_view ColumnReader::next_plain(std::string_view& bytes) const {
  std::size_t size = value_bytes(node_.type);
  if (size == 0) {
    check(bytes.size() >= 4, "its values are cut");
    size = number_of<std::uint32_t>(bytes);
    bytes.remove_prefix(4);
  }
  check(size <= bytes.size(), "its values are cut");
  std::string_view value = bytes.substr(0, size);
  bytes.remove_prefix(size);
  return value;
}

std::string_view ColumnReader::next_value() {
  constexpr std::array<std::string_view, 2> kTruth = {std::string_view("\0", 1),
                                                      std::string_view("\1", 1)};
  if (values_kind_ == Values::kRunLength) return kTruth[indices_.next() & 1];
  if (values_kind_ == Values::kDictionary) {
    std::uint32_t index = indices_.next();
    check(index < dictionary_.size(), "an index is outside of the dictionary");
    return dictionary_[index];
  }
  if (node_.type != ParquetType::kBoolean) return next_plain(values_);
  check(!values_.empty(), "its values are cut");
  auto byte = static_cast<unsigned char>(values_[0]);
  std::size_t truth = byte >> bits_used_ & 1;
  if (++bits_used_ == 8) {
    bits_used_ = 0;
    values_.remove_prefix(1);
  }
  return kTruth[truth];
}

const ColumnReader::Levels* ColumnReader::peek() {
  if (have_levels_) return &levels_;
  if (!load_page()) return nullptr;
  levels_.rep = node_.max_rep > 0 ? reps_.next() : 0;
  levels_.def = node_.max_def > 0 ? defs_.next() : 0;
  check(levels_.rep <= node_.max_rep && levels_.def <= node_.max_def, "a level is too high");
  have_levels_ = true;
  return &levels_;
}

void ColumnReader::take(std::string& json) {
  if (levels_.def < node_.max_def) {
    json += "null";
  } else {
    append_json(json, node_.type, next_value());
  }
  have_levels_ = false;
  --page_left_;
  if (levels_.rep == 0) ++rows_;
}

void ColumnReader::skip() {
  if (levels_.def == node_.max_def) next_value();
  have_levels_ = false;
  --page_left_;
  if (levels_.rep == 0) ++rows_;
}

}  // namespace bev
