#include "data/parquet/thrift.h"

#include "base/error.h"

namespace bev {

namespace {

constexpr int kMostLevels = 32;

void check(bool fine, const char* what) {
  BEV_CHECK(fine, ErrorKind::kInput, "its metadata is broken: ", what);
}

std::int64_t zigzag(std::uint64_t value) {
  return static_cast<std::int64_t>(value >> 1) ^ -static_cast<std::int64_t>(value & 1);
}

}  // namespace

void ThriftReader::enter() { check(++depth_ <= kMostLevels, "structs nest too deep"); }

std::uint8_t ThriftReader::byte() {
  check(at_ < bytes_.size(), "it ends early");
  return static_cast<std::uint8_t>(bytes_[at_++]);
}

std::uint64_t ThriftReader::varint() {
  std::uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    std::uint8_t next = byte();
    value |= static_cast<std::uint64_t>(next & 0x7f) << shift;
    if (next < 0x80) return value;
  }
  check(false, "a number is too long");
  return 0;
}

void ThriftReader::advance(std::uint64_t count) {
  check(count <= bytes_.size() - at_, "it ends early");
  at_ += static_cast<std::size_t>(count);
}

std::optional<ThriftField> ThriftReader::next_field(std::int64_t last_id) {
  std::uint8_t header = byte();
  if (header == 0) return std::nullopt;
  std::uint8_t type = header & 0xf, delta = header >> 4;
  check(type >= 1 && type <= 12, "a field has an unknown type");
  std::int64_t id = delta == 0 ? zigzag(varint()) : last_id + delta;
  return ThriftField{id, static_cast<ThriftType>(type)};
}

std::size_t ThriftReader::list_size(const ThriftField& field, ThriftType type) {
  check(field.type == ThriftType::kList, "a list is missing");
  std::uint8_t header = byte();
  std::uint64_t size = header >> 4;
  if (size == 15) size = varint();
  // Every entry has at least one byte.
  check(size <= bytes_.size() - at_, "a list is longer than the file");
  check(size == 0 || static_cast<ThriftType>(header & 0xf) == type,
        "the entries of a list have another type");
  return static_cast<std::size_t>(size);
}

std::int64_t ThriftReader::read_int() { return zigzag(varint()); }

std::int64_t ThriftReader::read_int(const ThriftField& field) {
  check(field.type == ThriftType::kI16 || field.type == ThriftType::kI32 ||
            field.type == ThriftType::kI64,
        "a number is missing");
  return read_int();
}

bool ThriftReader::read_bool(const ThriftField& field) const {
  check(field.type == ThriftType::kTrue || field.type == ThriftType::kFalse,
        "a truth value is missing");
  return field.type == ThriftType::kTrue;
}

std::string_view ThriftReader::read_text() {
  std::uint64_t size = varint();
  std::size_t begin = at_;
  advance(size);
  return bytes_.substr(begin, static_cast<std::size_t>(size));
}

std::string_view ThriftReader::read_text(const ThriftField& field) {
  check(field.type == ThriftType::kBinary, "a text is missing");
  return read_text();
}

void ThriftReader::skip_list() {
  std::uint8_t header = byte();
  std::uint64_t size = header >> 4;
  if (size == 15) size = varint();
  check(size <= bytes_.size() - at_, "a list is longer than the file");
  auto type = static_cast<ThriftType>(header & 0xf);
  // Truth values take a byte each in a list, none in a struct.
  if (type == ThriftType::kTrue || type == ThriftType::kFalse) return advance(size);
  for (; size > 0; --size) skip(type);
}

void ThriftReader::skip_map() {
  std::uint64_t size = varint();
  if (size == 0) return;
  check(size <= bytes_.size() - at_, "a map is longer than the file");
  std::uint8_t types = byte();
  for (; size > 0; --size) {
    skip(static_cast<ThriftType>(types >> 4));
    skip(static_cast<ThriftType>(types & 0xf));
  }
}

void ThriftReader::skip(ThriftType type) {
  switch (type) {
    case ThriftType::kTrue:
    case ThriftType::kFalse:
      return;
    case ThriftType::kByte:
      return advance(1);
    case ThriftType::kI16:
    case ThriftType::kI32:
    case ThriftType::kI64:
      varint();
      return;
    case ThriftType::kDouble:
      return advance(8);
    case ThriftType::kBinary:
      read_text();
      return;
    case ThriftType::kStruct:
      return read_struct([](const ThriftField&) { return false; });
    case ThriftType::kList:
    case ThriftType::kSet:
    case ThriftType::kMap:
      enter();
      if (type == ThriftType::kMap) {
        skip_map();
      } else {
        skip_list();
      }
      --depth_;
      return;
  }
  check(false, "a value has an unknown type");
}

}  // namespace bev
