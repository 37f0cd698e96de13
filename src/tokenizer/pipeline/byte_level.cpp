#include "tokenizer/pipeline/byte_level.h"

namespace bev {

namespace {

constexpr CodePoint kPoints = 0x180;  // all mapped characters are below

std::array<CodePoint, 256> make_points() {
  std::array<CodePoint, 256> points;
  CodePoint next = 256;
  for (CodePoint byte = 0; byte < 256; ++byte) {
    bool visible = (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
    points[byte] = visible ? byte : next++;
  }
  return points;
}

std::array<int, kPoints> make_bytes() {
  std::array<int, kPoints> bytes;
  bytes.fill(-1);
  for (int byte = 0; byte < 256; ++byte)
    bytes[byte_points()[static_cast<std::size_t>(byte)]] = byte;
  return bytes;
}

}  // namespace

const std::array<CodePoint, 256>& byte_points() {
  static const std::array<CodePoint, 256> points = make_points();
  return points;
}

std::string to_byte_level(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() + bytes.size() / 4);
  for (char byte : bytes) append_point(out, byte_points()[static_cast<unsigned char>(byte)]);
  return out;
}

std::optional<std::string> from_byte_level(std::string_view text) {
  static const std::array<int, kPoints> bytes = make_bytes();
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    DecodedPoint next = decode_point(text, at);
    if (next.point >= kPoints || bytes[next.point] < 0) return std::nullopt;
    out.push_back(static_cast<char>(bytes[next.point]));
    at += next.bytes;
  }
  return out;
}

}  // namespace bev
