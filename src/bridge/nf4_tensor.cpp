#include "bridge/nf4_tensor.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "bridge/convert.h"
#include "models/families/hf_config.h"

namespace bev {

namespace {

constexpr const char *kNf4State = ".quant_state.bitsandbytes__nf4",
                     *kFp4State = ".quant_state.bitsandbytes__fp4";

std::string piece_name(Nf4Piece piece, const std::string& tensor) {
  switch (piece) {
    case Nf4Piece::kCodes:
      return tensor;
    case Nf4Piece::kAbsmax:
      return tensor + ".absmax";
    case Nf4Piece::kMap:
      return tensor + ".quant_map";
    case Nf4Piece::kNestedAbsmax:
      return tensor + ".nested_absmax";
    case Nf4Piece::kNestedMap:
      return tensor + ".nested_quant_map";
    case Nf4Piece::kState:
      return tensor + kNf4State;
  }
  return tensor;
}

// The JSON object of a tensor, ended by spaces so that its length does not depend on the offset.
std::string state_text(const Shape& shape, const Nf4Format& format, float offset) {
  std::string text = concat(R"({"quant_type": "nf4", "blocksize": )", format.block,
                            R"(, "dtype": ")", torch_name(format.dtype), R"(", "shape": )", shape);
  if (!format.double_quant) return text + "}";
  text += concat(R"(, "nested_blocksize": )", kNf4NestedBlocks,
                 R"(, "nested_dtype": "float32", "nested_offset": )");
  char digits[32];
  auto end = std::to_chars(digits, digits + sizeof digits, static_cast<double>(offset)).ptr;
  std::string number(digits, end);
  if (number.find_first_of(".e") == std::string::npos) number += ".0";
  constexpr std::size_t kLongest = 26;
  text += number + "}";
  return text + std::string(kLongest - number.size(), ' ');
}

template <class T>
std::vector<std::byte> bytes_of(std::span<const T> values) {
  auto bytes = std::as_bytes(values);
  return {bytes.begin(), bytes.end()};
}

}  // namespace

std::string_view torch_name(Dtype dtype) {
  return dtype == Dtype::kBf16 ? "bfloat16" : dtype == Dtype::kF16 ? "float16" : "float32";
}

std::vector<Nf4Piece> nf4_pieces(const Nf4Format& format) {
  using enum Nf4Piece;
  if (!format.double_quant) return {kCodes, kAbsmax, kMap, kState};
  return {kCodes, kAbsmax, kMap, kNestedAbsmax, kNestedMap, kState};
}

TensorSpec nf4_piece_spec(Nf4Piece piece, const std::string& tensor, const Shape& shape,
                          const Nf4Format& format) {
  std::int64_t blocks = ceil_div(shape.numel(), format.block);
  std::string name = piece_name(piece, tensor);
  switch (piece) {
    case Nf4Piece::kCodes:
      return {name, Dtype::kU8, {nf4_code_bytes(shape.numel()), 1}};
    case Nf4Piece::kAbsmax:
      return {name, format.double_quant ? Dtype::kU8 : Dtype::kF32, {blocks}};
    case Nf4Piece::kMap:
      return {name, Dtype::kF32, {static_cast<std::int64_t>(kNf4Values.size())}};
    case Nf4Piece::kNestedAbsmax:
      return {name, Dtype::kF32, {ceil_div(blocks, kNf4NestedBlocks)}};
    case Nf4Piece::kNestedMap:
      return {name, Dtype::kF32, {kNf4MapSize}};
    case Nf4Piece::kState:
      break;
  }
  auto length = static_cast<std::int64_t>(state_text(shape, format, 0).size());
  return {name, Dtype::kU8, {length}};
}

std::vector<std::byte> Nf4Tensor::piece(Nf4Piece piece) const {
  switch (piece) {
    case Nf4Piece::kCodes:
      return bytes_of<std::uint8_t>(codes);
    case Nf4Piece::kAbsmax:
      return format.double_quant ? bytes_of<std::uint8_t>(scales.codes)
                                 : bytes_of<float>(scales.absmax);
    case Nf4Piece::kMap:
      return bytes_of<float>(kNf4Values);
    case Nf4Piece::kNestedAbsmax:
      return bytes_of<float>(scales.absmax);
    case Nf4Piece::kNestedMap:
      return bytes_of<float>(scales.map);
    case Nf4Piece::kState:
      break;
  }
  std::string text = state_text(shape, format, scales.offset);
  return bytes_of<char>(text);
}

Nf4Tensor quantize_tensor(const std::string& name, const Shape& shape, const void* values,
                          const Nf4Format& format) {
  std::int64_t count = shape.numel(), chunk = format.block * 1024;
  Nf4Tensor out{shape, format, {}, {}};
  out.codes.resize(static_cast<std::size_t>(nf4_code_bytes(count)));
  std::vector<float> absmax(static_cast<std::size_t>(ceil_div(count, format.block)));
  std::vector<float> part;
  const auto* from = static_cast<const std::byte*>(values);
  for (std::int64_t begin = 0; begin < count; begin += chunk) {
    std::int64_t size = std::min(chunk, count - begin);
    part.resize(static_cast<std::size_t>(size));
    convert_elements({from + static_cast<std::size_t>(begin) * size_of(format.dtype), format.dtype},
                     {part.data(), Dtype::kF32}, size);
    std::span<std::uint8_t> codes(out.codes.data() + begin / 2,
                                  static_cast<std::size_t>(nf4_code_bytes(size)));
    std::span<float> maxima(absmax.data() + begin / format.block,
                            static_cast<std::size_t>(ceil_div(size, format.block)));
    std::int64_t bad = quantize_nf4(part, format.block, codes, maxima);
    BEV_CHECK(bad < 0, ErrorKind::kInput, name, ": element ", begin + bad, " is ",
              part[static_cast<std::size_t>(std::max<std::int64_t>(bad, 0))],
              "; NF4 has finite numbers only");
  }
  out.scales = make_nf4_scales(std::move(absmax), format);
  return out;
}

bool is_nf4(const StoredTensor& stored, const WeightFiles& files) {
  return files.contains(stored.name + kNf4State) || files.contains(stored.name + kFp4State);
}

std::vector<std::string> nf4_names(const std::string& tensor) {
  using enum Nf4Piece;
  std::vector<std::string> names;
  for (Nf4Piece piece : {kAbsmax, kMap, kNestedAbsmax, kNestedMap, kState}) {
    names.push_back(piece_name(piece, tensor));
  }
  return names;
}

namespace {

// Reads the pieces of a stored tensor.
class PieceReader {
 public:
  PieceReader(const std::string& tensor, const WeightFiles& files)
      : tensor_(tensor), files_(files) {}

  HfConfig state() const {
    TensorBytes bytes = piece(Nf4Piece::kState, Dtype::kU8);
    constexpr std::size_t kMost = 4096;
    BEV_CHECK(bytes.bytes.size() <= kMost, ErrorKind::kInput, tensor_, kNf4State, ": ",
              bytes.bytes.size(), " bytes are no description of a tensor");
    std::string text(reinterpret_cast<const char*>(bytes.bytes.data()), bytes.bytes.size());
    return HfConfig::parse(text, tensor_ + kNf4State);
  }
  // All `count` floats of a piece, which must be finite.
  std::vector<float> floats(Nf4Piece which, std::int64_t count) const {
    TensorBytes bytes = sized(which, Dtype::kF32, count);
    std::vector<float> out(static_cast<std::size_t>(count));
    std::memcpy(out.data(), bytes.bytes.data(), bytes.bytes.size());
    bool finite = std::all_of(out.begin(), out.end(), [](float x) { return std::isfinite(x); });
    BEV_CHECK(finite, ErrorKind::kInput, piece_name(which, tensor_), ": not all are finite");
    return out;
  }
  std::vector<std::uint8_t> codes(Nf4Piece which, std::int64_t count) const {
    TensorBytes bytes = sized(which, Dtype::kU8, count);
    const auto* first = reinterpret_cast<const std::uint8_t*>(bytes.bytes.data());
    return {first, first + count};
  }

 private:
  TensorBytes piece(Nf4Piece which, Dtype dtype) const {
    std::string name = piece_name(which, tensor_);
    BEV_CHECK(files_.contains(name), ErrorKind::kInput, tensor_,
              " is stored in NF4 without its tensor ", name);
    TensorBytes bytes = files_.tensor(name);
    BEV_CHECK(bytes.dtype == dtype, ErrorKind::kInput, name, " is stored as ", name_of(bytes.dtype),
              " and not as ", name_of(dtype));
    return bytes;
  }
  TensorBytes sized(Nf4Piece which, Dtype dtype, std::int64_t count) const {
    TensorBytes bytes = piece(which, dtype);
    BEV_CHECK(bytes.shape.numel() == count, ErrorKind::kInput, piece_name(which, tensor_), " has ",
              bytes.shape.numel(), " numbers and not ", count);
    return bytes;
  }

  const std::string& tensor_;
  const WeightFiles& files_;
};

Nf4Format read_format(const HfConfig& state, const Shape& shape) {
  Nf4Format format;
  std::string type = state.text("quant_type");
  if (type != "nf4") state.reject("quant_type", "only nf4 is read");
  format.block = state.positive_integer("blocksize");
  if (!is_nf4_block(format.block)) {
    state.reject("blocksize", "a block is a power of two from 32 to 4096");
  }
  std::optional<Dtype> dtype = parse_dtype(state.text("dtype"));
  if (!dtype || !is_float(*dtype) || *dtype == Dtype::kF64) {
    state.reject("dtype", "only float32, bfloat16 and float16 are quantised");
  }
  format.dtype = *dtype;
  if (!std::ranges::equal(state.counts("shape"), shape.dims())) {
    state.reject("shape", concat("config.json asks for ", shape));
  }
  format.double_quant = state.has("nested_blocksize");
  if (format.double_quant && state.positive_integer("nested_blocksize") != kNf4NestedBlocks) {
    state.reject("nested_blocksize", concat("only ", kNf4NestedBlocks, " is read"));
  }
  return format;
}

}  // namespace

StoredNf4::StoredNf4(const StoredTensor& stored, const Shape& shape, const WeightFiles& files) {
  BEV_CHECK(!files.contains(stored.name + kFp4State), ErrorKind::kInput, stored.name,
            " is stored in FP4; only bitsandbytes' NF4 is read");
  PieceReader pieces(stored.name, files);
  HfConfig state = pieces.state();
  format_ = read_format(state, shape);
  std::int64_t count = shape.numel(), blocks = ceil_div(count, format_.block);
  BEV_CHECK(static_cast<std::int64_t>(stored.bytes.size()) == nf4_code_bytes(count),
            ErrorKind::kInput, stored.name, " has ", stored.bytes.size(), " bytes for ", count,
            " codes of 4 bits");
  std::vector<float> map = pieces.floats(Nf4Piece::kMap, kNf4Values.size());
  BEV_CHECK(std::ranges::equal(map, kNf4Values), ErrorKind::kInput,
            piece_name(Nf4Piece::kMap, stored.name), " is not the table of NF4");
  codes_ = {reinterpret_cast<const std::uint8_t*>(stored.bytes.data()), stored.bytes.size()};
  scales_.block = format_.block;
  if (!format_.double_quant) {
    scales_.absmax = pieces.floats(Nf4Piece::kAbsmax, blocks);
    return;
  }
  scales_.codes = pieces.codes(Nf4Piece::kAbsmax, blocks);
  scales_.absmax = pieces.floats(Nf4Piece::kNestedAbsmax, ceil_div(blocks, kNf4NestedBlocks));
  scales_.map = pieces.floats(Nf4Piece::kNestedMap, kNf4MapSize);
  scales_.offset = static_cast<float>(state.magnitude("nested_offset", 0));
}

void StoredNf4::read(Range elements, Dtype dtype, void* out) const {
  constexpr std::int64_t kChunk = 4096;
  std::array<float, kChunk> part;
  auto* to = static_cast<std::byte*>(out);
  for (std::int64_t at = elements.begin; at < elements.end; at += kChunk) {
    std::int64_t count = std::min(kChunk, elements.end - at);
    dequantize_nf4(codes_, scales_, format_.dtype, at, count, part.data());
    convert_elements({part.data(), Dtype::kF32}, {to, dtype}, count);
    to += static_cast<std::size_t>(count) * size_of(dtype);
  }
}

}  // namespace bev
