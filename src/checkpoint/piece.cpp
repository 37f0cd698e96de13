#include "checkpoint/piece.h"

#include "bridge/convert.h"

namespace bev {

std::span<const std::byte> open_piece(PieceFiles& files, const Piece& piece,
                                      const std::string& tensor, Dtype dtype) {
  std::int64_t elements = piece.memory.numel();
  std::span<const std::byte> bytes = files.open(piece, tensor, dtype, piece.first + elements);
  return bytes.subspan(static_cast<std::size_t>(piece.first) * size_of(dtype),
                       static_cast<std::size_t>(elements) * size_of(dtype));
}

void read_pieces(PieceFiles& files, const std::vector<Piece>& pieces, const StoredBox& stored,
                 Dtype dtype, void* out) {
  std::size_t item = size_of(stored.dtype), out_item = size_of(dtype);
  for (const Piece& piece : pieces) {
    std::optional<Box> common = intersection(stored.box, piece.box);
    if (!common) continue;
    std::span<const std::byte> bytes = open_piece(files, piece, stored.tensor, stored.dtype);
    for (const BoxRun& run : common_runs(piece.memory, stored.box, *common)) {
      std::span<const std::byte> from = bytes.subspan(static_cast<std::size_t>(run.a) * item,
                                                      static_cast<std::size_t>(run.count) * item);
      files.check(piece, from);
      convert_elements(
          {from.data(), stored.dtype},
          {static_cast<std::byte*>(out) + static_cast<std::size_t>(run.b) * out_item, dtype},
          run.count);
    }
  }
}

}  // namespace bev
