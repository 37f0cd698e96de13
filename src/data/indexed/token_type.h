// Element types of Megatron's indexed datasets, by their codes in the .idx header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/error.h"

namespace bev {

enum class TokenType : std::uint8_t {
  kU8 = 1,
  kI8 = 2,
  kI16 = 3,
  kI32 = 4,
  kI64 = 5,
  kF64 = 6,
  kF32 = 7,
  kU16 = 8,
};

// Calls f with a value of the C++ type.
template <class F>
decltype(auto) visit_token_type(TokenType type, F&& f) {
  switch (type) {
    case TokenType::kU8:
      return f(std::uint8_t{});
    case TokenType::kI8:
      return f(std::int8_t{});
    case TokenType::kI16:
      return f(std::int16_t{});
    case TokenType::kI32:
      return f(std::int32_t{});
    case TokenType::kI64:
      return f(std::int64_t{});
    case TokenType::kF64:
      return f(double{});
    case TokenType::kF32:
      return f(float{});
    case TokenType::kU16:
      return f(std::uint16_t{});
  }
  BEV_FAIL(ErrorKind::kInternal, "token type ", static_cast<int>(type));
}

inline std::optional<TokenType> token_type_of(std::uint8_t code) {
  if (code < 1 || code > 8) return std::nullopt;
  return static_cast<TokenType>(code);
}

inline std::size_t size_of(TokenType type) {
  return visit_token_type(type, [](auto value) { return sizeof value; });
}

// numpy's name of the type.
inline const char* name_of(TokenType type) {
  constexpr const char* kNames[] = {"uint8", "int8",    "int16",   "int32",
                                    "int64", "float64", "float32", "uint16"};
  return kNames[static_cast<std::size_t>(type) - 1];
}

// Type in which Megatron's tools store the ids of a vocabulary.
inline TokenType token_type_for(std::int64_t vocab_size) {
  return vocab_size < 65500 ? TokenType::kU16 : TokenType::kI32;
}

}  // namespace bev
