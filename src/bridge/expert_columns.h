// GPT-OSS expert layout: all experts of a layer in one tensor [E, in, out] (bias [E, out]), where
// ours is [E, out, in], with gate and up columns interleaved, where ours are gate | up.
#pragma once

#include "bridge/convert.h"
#include "tensor/shape.h"

namespace bev {

struct ExpertColumns {
  Shape shape;              // our shape
  bool in_turns = false;    // gate, up, gate, ...
  bool transposed = false;  // their tensor is [E, in, out]
};

void read_expert_columns(const ExpertColumns& layout, ConstElements theirs, Elements ours);
void write_expert_columns(const ExpertColumns& layout, ConstElements ours, Elements theirs);

}  // namespace bev
