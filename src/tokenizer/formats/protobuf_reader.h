// Minimal protobuf reader for untrusted input, field by field.
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>

#include "base/protobuf.h"

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
  std::uint64_t read_varint();
  std::string_view take(std::uint64_t count);
  void need(ProtobufWire wire) const;

  std::string_view bytes_;
  std::string_view source_;
  std::uint32_t field_ = 0;
  ProtobufWire wire_ = ProtobufWire::kVarint;
  std::uint64_t value_ = 0;
  std::string_view text_;
};

}  // namespace bev
