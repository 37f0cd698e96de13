// GEMM engines on the native bf16 instructions of the CPU. Like those, they flush subnormals to
// zero.
#pragma once

#include "backend/cpu/tile_engine.h"

namespace bev::cpu {

// AVX512_BF16; null if the CPU lacks it.
const TileEngine* avx512_bf16_engine();

// AMX; null if the CPU or the kernel lacks it. Requests the kernel's permission for the process.
const TileEngine* amx_engine();

// The faster of the two; null if there is none.
const TileEngine* bf16_engine();

}  // namespace bev::cpu
