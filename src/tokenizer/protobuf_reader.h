// Reads the fields of a protocol buffer message one by one, trusting nothing.
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>

namespace bev {

class ProtobufReader {
 public:
  // `source` is the name for messages; both must outlive it.
  ProtobufReader(std::string_view bytes, std::string_view source)
      : bytes_(bytes), source_(source) {}

  // Goes to the next field; false at the end. Error(kInput) when the bytes are no message.
  bool next();

  std::uint32_t field() const { return field_; }
  // The field's value; Error(kInput) when it has another type.
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
