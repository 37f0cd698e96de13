// Experts as GPT-OSS keeps them: those of a layer in one tensor [E, in, out] (a bias [E, out]),
// where ours is [E, out, in], and columns of gate and up in turns, where ours are gate | up.
#pragma once

#include "bridge/convert.h"
#include "tensor/shape.h"

namespace bev {

struct ExpertColumns {
  Shape shape;              // ours
  bool in_turns = false;    // gate, up, gate, ...
  bool transposed = false;  // theirs is [E, in, out]
};

void read_expert_columns(const ExpertColumns& layout, ConstElements theirs, Elements ours);
void write_expert_columns(const ExpertColumns& layout, ConstElements ours, Elements theirs);

}  // namespace bev
