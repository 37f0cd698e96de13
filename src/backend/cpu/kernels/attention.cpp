#include "backend/cpu/kernels/attention_tiles.h"
#include "backend/cpu/kernels/tables.h"

namespace bev::cpu::BEV_CPU_LEVEL {

AttentionKernels attention_kernels() {
  return {.rope_table = rope_table,
          .rope_apply = rope_apply,
          .forward = attention_forward,
          .backward = attention_backward};
}

}  // namespace bev::cpu::BEV_CPU_LEVEL
