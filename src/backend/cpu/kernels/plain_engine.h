// Tile engine (microkernel) without special instructions: f32 panels for any element type, vectors
// as wide as the level allows.
#pragma once

#include "backend/cpu/tile_engine.h"

namespace bev::cpu::BEV_CPU_LEVEL {

template <class T>
const TileEngine& plain_engine();

}  // namespace bev::cpu::BEV_CPU_LEVEL
