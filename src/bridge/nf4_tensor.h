// NF4 tensors in files, as bitsandbytes writes them for a tensor NAME: its codes as bytes [n / 2,
// 1] under NAME itself, NAME.absmax (f32, or codes of double quantisation), NAME.quant_map,
// NAME.nested_absmax and NAME.nested_quant_map, and in NAME.quant_state.bitsandbytes__nf4 the bytes
// of a JSON object with block size, shape and dtype.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bridge/quantized_source.h"
#include "tensor/nf4_quantize.h"

namespace bev {

// PyTorch's name of a dtype that bitsandbytes quantises.
std::string_view torch_name(Dtype dtype);

// One of the tensors that an NF4 tensor consists of.
enum class Nf4Piece : std::uint8_t { kCodes, kAbsmax, kMap, kNestedAbsmax, kNestedMap, kState };
std::vector<Nf4Piece> nf4_pieces(const Nf4Format& format);
TensorSpec nf4_piece_spec(Nf4Piece piece, const std::string& tensor, const Shape& shape,
                          const Nf4Format& format);

// A tensor quantised to be written.
struct Nf4Tensor {
  Shape shape;
  Nf4Format format;
  std::vector<std::uint8_t> codes;
  Nf4Scales scales;

  std::vector<std::byte> piece(Nf4Piece piece) const;
};
// Quantises `values` of format.dtype, the flattened tensor. Throws Error(kInput) naming the tensor
// and its first element that is not finite.
Nf4Tensor quantize_tensor(const std::string& name, const Shape& shape, const void* values,
                          const Nf4Format& format);

// Also true for FP4, which StoredNf4 refuses.
bool is_nf4(const StoredTensor& stored, const WeightFiles& files);
// Names of the pieces of a tensor other than its codes, whether they exist or not.
std::vector<std::string> nf4_names(const std::string& tensor);

// NF4 tensor of mapped files.
class StoredNf4 final : public QuantizedSource {
 public:
  // Throws Error(kInput) that names the tensor if its pieces are not those of an NF4 tensor of this
  // shape.
  StoredNf4(const StoredTensor& stored, const Shape& shape, const WeightFiles& files);

  const Nf4Format& format() const { return format_; }
  std::span<const std::uint8_t> codes() const { return codes_; }
  const Nf4Scales& scales() const { return scales_; }
  Dtype dtype() const override { return format_.dtype; }
  void read(Range elements, Dtype dtype, void* out) const override;

 private:
  Nf4Format format_;
  std::span<const std::uint8_t> codes_;
  Nf4Scales scales_;
};

}  // namespace bev
