// numpy's default_rng: PCG64 (XSL-RR 128/64) seeded through SeedSequence, and its bounded integers.
// Megatron's mock document lengths use it.
#pragma once

#include <cstdint>

namespace bev {

class Pcg64 {
 public:
  explicit Pcg64(std::uint32_t seed);

  std::uint64_t next64();
  // Low half of a 64-bit word, then its high half.
  std::uint32_t next32();
  // Uniform in [low, high) by Lemire's method, as `integers(..., dtype=int32)` draws it.
  std::int32_t integer(std::int32_t low, std::int32_t high);

 private:
  __extension__ using Wide = unsigned __int128;

  Wide state_ = 0, increment_ = 0;
  std::uint32_t kept_ = 0;
  bool has_kept_ = false;
};

}  // namespace bev
