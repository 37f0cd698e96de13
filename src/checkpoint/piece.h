// Where the elements of a checkpoint's tensors are: boxes of global tensors within stored ones.
// The stored tensors are those of our shards, or of another program's files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/box.h"
#include "tensor/dtype.h"

namespace bev {

struct Piece {
  Box box;                 // of the global tensor
  Box memory;              // box that contains it, row-major from element `first` on; it may reach
                           // beyond the tensor, where other elements lie
  std::int64_t first = 0;  // element of the stored tensor
  std::size_t file = 0;    // index of its file or shard
  std::string key = {};    // of the stored tensor in that file
};

// By tensor; the pieces of a tensor do not overlap.
using PieceTable = std::map<std::string, std::vector<Piece>, std::less<>>;

// Bytes of stored tensors. Thread safe. Errors are Error(kInput) that name file and tensor.
class PieceFiles {
 public:
  virtual ~PieceFiles() = default;
  // All bytes of the piece's stored tensor, of this dtype and with at least `elements` elements.
  // They are not verified yet.
  virtual std::span<const std::byte> open(const Piece& piece, const std::string& tensor,
                                          Dtype dtype, std::int64_t elements) = 0;
  // Verifies bytes that open() returned, as far as the format can.
  virtual void check(const Piece& piece, std::span<const std::byte> bytes) = 0;
  // Verifies every byte of every file. Returns the problems with file and tensors.
  virtual std::vector<std::string> verify() = 0;
};

// Bytes of the piece's memory.
std::span<const std::byte> open_piece(PieceFiles& files, const Piece& piece,
                                      const std::string& tensor, Dtype dtype);

// A box of a tensor that is stored in `dtype`.
struct StoredBox {
  const std::string& tensor;
  Dtype dtype;
  const Box& box;
};
// Reads the box in row-major order from the tensor's pieces, converted to `dtype`.
void read_pieces(PieceFiles& files, const std::vector<Piece>& pieces, const StoredBox& stored,
                 Dtype dtype, void* out);

}  // namespace bev
