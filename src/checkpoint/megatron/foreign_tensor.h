// Tensors of another program's checkpoint under that program's names: shape, dtype and where each
// box of elements is stored. All of Megatron's formats become such a table.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/box.h"
#include "tensor/dtype.h"

namespace bev {

struct ForeignChunk {
  Box box;  // of the tensor; row-major from element `first` of the stored tensor on
  std::int64_t first = 0;
  std::size_t file = 0;  // index of a file
  std::string key = {};  // stored tensor in the file, in the words of the format
};

struct ForeignTensor {
  Dtype dtype = Dtype::kF32;
  Shape shape;
  std::vector<ForeignChunk> chunks;
};

using ForeignTensors = std::map<std::string, ForeignTensor, std::less<>>;

// Throws Error(kInput) that begins with `where` unless the chunks cover every element exactly once.
void check_chunks(const std::string& name, const ForeignTensor& tensor, const std::string& where);

}  // namespace bev
