// Tile engines for bf16 on the CPU's own bf16 instructions. Like these they take numbers below the
// smallest normal for zero.
#pragma once

#include "backend/cpu/tile_engine.h"

namespace bev::cpu {

// AVX512_BF16; null where the CPU lacks it.
const TileEngine* avx512_bf16_engine();

// AMX; null where the CPU or the kernel lacks it. Asks the kernel for the process's permission.
const TileEngine* amx_engine();

// The better of them; null where there is none.
const TileEngine* bf16_engine();

}  // namespace bev::cpu
