#include "tokenizer/formats/protobuf_reader.h"

#include <cstring>

#include "base/error.h"

namespace bev {

std::string_view ProtobufReader::take(std::uint64_t count) {
  BEV_CHECK(count <= bytes_.size(), ErrorKind::kInput, source_,
            ": cut short or not a SentencePiece model");
  std::string_view taken = bytes_.substr(0, count);
  bytes_.remove_prefix(count);
  return taken;
}

std::uint64_t ProtobufReader::read_varint() {
  std::uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    auto byte = static_cast<unsigned char>(take(1)[0]);
    value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) return value;
  }
  BEV_FAIL(ErrorKind::kInput, source_, ": a number is too long; not a SentencePiece model");
}

bool ProtobufReader::next() {
  if (bytes_.empty()) return false;
  std::uint64_t tag = read_varint();
  field_ = static_cast<std::uint32_t>(tag >> 3);
  wire_ = static_cast<ProtobufWire>(tag & 7);
  switch (wire_) {
    case ProtobufWire::kVarint:
      value_ = read_varint();
      return true;
    case ProtobufWire::kFixed64:
      take(8);
      return true;
    case ProtobufWire::kBytes:
      text_ = take(read_varint());
      return true;
    case ProtobufWire::kFixed32:
      text_ = take(4);
      return true;
  }
  BEV_FAIL(ErrorKind::kInput, source_, ": a field of an unknown type; not a SentencePiece model");
}

void ProtobufReader::need(ProtobufWire wire) const {
  BEV_CHECK(wire_ == wire, ErrorKind::kInput, source_, ": field ", field_,
            " has another type; not a SentencePiece model");
}

std::uint64_t ProtobufReader::integer() const {
  need(ProtobufWire::kVarint);
  return value_;
}

float ProtobufReader::number() const {
  need(ProtobufWire::kFixed32);
  float value;
  std::memcpy(&value, text_.data(), sizeof(value));
  return value;
}

std::string_view ProtobufReader::text() const {
  need(ProtobufWire::kBytes);
  return text_;
}

}  // namespace bev
