// Reader of Thrift's compact protocol, in which Parquet writes its metadata. Every mistake is an
// Error(kInput); memory does not grow with the sizes that the bytes claim.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace bev {

// Type nibbles of the compact protocol.
enum class ThriftType : std::uint8_t {
  kTrue = 1,
  kFalse = 2,
  kByte = 3,
  kI16 = 4,
  kI32 = 5,
  kI64 = 6,
  kDouble = 7,
  kBinary = 8,
  kList = 9,
  kSet = 10,
  kMap = 11,
  kStruct = 12,
};

struct ThriftField {
  std::int64_t id = 0;
  ThriftType type = ThriftType::kStruct;
};

class ThriftReader {
 public:
  // The bytes must outlive the reader.
  explicit ThriftReader(std::string_view bytes) : bytes_(bytes) {}

  // Calls on_field for every field of a struct; it reads the value and returns true, or returns
  // false for one that is to be skipped.
  template <class OnField>
  void read_struct(OnField on_field) {
    enter();
    std::int64_t id = 0;
    while (std::optional<ThriftField> field = next_field(id)) {
      id = field->id;
      if (!on_field(*field)) skip(field->type);
    }
    --depth_;
  }
  // Calls on_entry for every entry of a list of this type.
  template <class OnEntry>
  void read_list(const ThriftField& field, ThriftType type, OnEntry on_entry) {
    for (std::size_t left = list_size(field, type); left > 0; --left) on_entry();
  }

  // Values of fields; throw if the field has another type.
  std::int64_t read_int(const ThriftField& field);
  bool read_bool(const ThriftField& field) const;
  std::string_view read_text(const ThriftField& field);
  // Entry of a list of integers or texts.
  std::int64_t read_int();
  std::string_view read_text();

  // Bytes read so far.
  std::size_t position() const { return at_; }

 private:
  void enter();
  std::optional<ThriftField> next_field(std::int64_t last_id);
  std::size_t list_size(const ThriftField& field, ThriftType type);
  void skip(ThriftType type);
  void skip_list();
  void skip_map();
  std::uint8_t byte();
  std::uint64_t varint();
  void advance(std::uint64_t count);

  std::string_view bytes_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace bev
