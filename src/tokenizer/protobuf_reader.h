// Minimal protobuf reader for untrusted input, field by field.
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>

namespace bev {

class ProtobufReader {
 public:
  // `source` is the name in messages; both must outlive the reader.
  ProtobufReader(std::string_view bytes, std::string_view source)
      : bytes_(bytes), source_(source) {}

  // Advances to the next field; false at the end. Throws Error(kInput) if the bytes are malformed.
  bool next();

  std::uint32_t field() const { return field_; }
  // Value of the field; throws Error(kInput) if it has another wire type.
  std::uint64_t integer() const;
  bool flag() const { return integer() != 0; }
  float number() const;
  std::string_view text() const;

 private:
  enum class Wire : std::uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

  std::uint64_t read_varint();
  std::string_view take(std::uint64_t count);
  void need(Wire wire) const;

  std::string_view bytes_;
  std::string_view source_;
  std::uint32_t field_ = 0;
  Wire wire_ = Wire::kVarint;
  std::uint64_t value_ = 0;
  std::string_view text_;
};

}  // namespace bev
