// GEMM microkernel with Intel AMX: 8 tile registers of 16 rows of 64 bytes, bf16 products with f32
// sums.
#include "backend/cpu/amx_gemm.h"
#include "backend/cpu/bf16_engines.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace bev::cpu {

#if defined(__x86_64__)
namespace {
// The compiler does not know the tile registers; the "memory" clobber keeps loads after the
// packing.
struct TileRegisters {
  template <int kTile>
  static void zero(TileName<kTile>) {
    asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
  }
  template <int kTile>
  static void load(TileName<kTile>, const void* at, std::int64_t row_bytes) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(at), "r"(row_bytes), "i"(kTile) : "memory");
  }
  template <int kTile>
  static void store(TileName<kTile>, void* at, std::int64_t row_bytes) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(at), "r"(row_bytes), "i"(kTile) : "memory");
  }
  template <int kSum, int kA, int kB>
  static void multiply(TileName<kSum>, TileName<kA>, TileName<kB>) {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSum), "i"(kA), "i"(kB));
  }
};

// Palette 1: every tile has 16 rows of 64 bytes.
struct alignas(64) TileConfig {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);
constexpr TileConfig kConfig;

void begin() { asm volatile("ldtilecfg %0" ::"m"(kConfig)); }
void end() { asm volatile("tilerelease"); }

void multiply(const TileGemm& tile) {
  TileRegisters tiles;
  multiply_amx(tiles, tile);
}

// CPUID leaf 0x1D describes the tiles, but some virtual machines leave it empty. So the feature
// flags, the state that the kernel saves, and its permission decide.
bool supported() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & bit_OSXSAVE) == 0) return false;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;
  if ((d & kAmxBf16) == 0 || (d & kAmxTile) == 0) return false;
  if (!__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512vl")) return false;
  unsigned low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  constexpr unsigned kTileState = 3u << 17;
  if ((low & kTileState) != kTileState) return false;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
}  // namespace

const TileEngine* amx_engine() {
  static constexpr TileEngine kEngine = amx_engine_over(multiply, begin, end);
  static const bool available = supported();
  return available ? &kEngine : nullptr;
}
#else
const TileEngine* amx_engine() { return nullptr; }
#endif

}  // namespace bev::cpu
