#include "bridge/torch/torch_archive.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/json_check.h"

namespace bev {

namespace {

constexpr std::string_view kPickleName = "/data.pkl";
constexpr std::size_t kMostDims = 16;
// Parameters wrap a tensor, and tensors with attributes wrap what rebuilds them.
constexpr int kMostWrappers = 4;

struct TypeName {
  std::string_view name, storage;
  Dtype dtype;
};
constexpr auto kTypes = std::to_array<TypeName>({
    {"float32", "FloatStorage", Dtype::kF32},
    {"float64", "DoubleStorage", Dtype::kF64},
    {"float16", "HalfStorage", Dtype::kF16},
    {"bfloat16", "BFloat16Storage", Dtype::kBf16},
    {"int64", "LongStorage", Dtype::kI64},
    {"int32", "IntStorage", Dtype::kI32},
    {"uint8", "ByteStorage", Dtype::kU8},
});

std::string_view without_module(std::string_view name) { return name.substr(name.rfind('.') + 1); }

std::optional<Dtype> storage_dtype(std::string_view type) {
  auto found = std::ranges::find(kTypes, type, &TypeName::storage);
  return found == kTypes.end() ? std::nullopt : std::optional(found->dtype);
}

// The call that rebuilds the tensor of a value, through parameters and attributes around it;
// nullptr: it is no tensor.
const PickleValue* rebuilding(const PickleValue* value) {
  for (int i = 0; i < kMostWrappers && value->is(PickleKind::kObject); ++i) {
    std::span<const PickleValue* const> arguments = value->arguments->items;
    std::string_view name = value->callable->text;
    bool parameter = name.starts_with("torch._utils._rebuild_parameter") && !arguments.empty();
    if (name.starts_with("torch._utils._rebuild_tensor")) return value;
    if (!parameter) return nullptr;
    value = arguments[0];
  }
  return nullptr;
}

}  // namespace

std::optional<Dtype> torch_dtype(std::string_view name) {
  auto found = std::ranges::find(kTypes, name, &TypeName::name);
  return found == kTypes.end() ? std::nullopt : std::optional(found->dtype);
}

TorchArchive::TorchArchive(std::span<const std::byte> bytes, std::string where)
    : where_(std::move(where)), zip_(bytes, where_) {
  for (const auto& [name, entry] : zip_.entries()) {
    if (!name.ends_with(kPickleName)) continue;
    BEV_CHECK(pickle_ == nullptr, ErrorKind::kInput, where_, ": has two pickles");
    BEV_CHECK(intact(entry), ErrorKind::kInput, where_, ": corrupt: ", quote(name),
              " does not have its checksum");
    folder_ = name.substr(0, name.size() - kPickleName.size() + 1);
    pickle_ = std::make_unique<Pickle>(entry.bytes, where_);
  }
  BEV_CHECK(pickle_ != nullptr, ErrorKind::kInput, where_, ": has no data.pkl: not of torch.save");
  const ZipEntry* order = zip_.find(folder_ + "byteorder");
  constexpr std::string_view kLittle = "little";
  bool little =
      order == nullptr || std::ranges::equal(order->bytes, std::as_bytes(std::span(kLittle)));
  BEV_CHECK(little, ErrorKind::kInput, where_, ": was written on a big-endian machine");
}

bool TorchArchive::is_tensor(const PickleValue& value) { return rebuilding(&value) != nullptr; }

// A reference is ('storage', class, key, location, number of elements).
std::span<const std::byte> TorchArchive::storage(const PickleValue& reference,
                                                 std::string_view name,
                                                 std::string_view& type) const {
  std::span<const PickleValue* const> parts;
  if (reference.is(PickleKind::kPersistent)) parts = reference.arguments->elements();
  bool good = parts.size() >= 3 && parts[1]->is(PickleKind::kGlobal) &&
              parts[2]->is(PickleKind::kText) && parts[0]->as_text() == "storage";
  BEV_CHECK(good, ErrorKind::kInput, where_, ": ", quote(name), " has no storage in the archive");
  type = without_module(parts[1]->text);
  const ZipEntry* entry = zip_.find(concat(folder_, "data/", parts[2]->text));
  BEV_CHECK(entry != nullptr, ErrorKind::kInput, where_, ": the storage of ", quote(name), ", ",
            quote(parts[2]->text), ", is missing");
  return entry->bytes;
}

namespace {

// Sizes or strides; false: they are no such list.
bool read_sizes(const PickleValue& value, std::vector<std::int64_t>& out) {
  std::span<const PickleValue* const> items = value.elements();
  if (items.size() > kMostDims) return false;
  for (const PickleValue* item : items) {
    std::optional<std::int64_t> size = item->as_int();
    if (!size || *size < 0) return false;
    out.push_back(*size);
  }
  return true;
}

bool row_major(const std::vector<std::int64_t>& shape, const std::vector<std::int64_t>& strides) {
  std::int64_t stride = 1;
  for (std::size_t i = shape.size(); i > 0; --i) {
    if (shape[i - 1] != 1 && strides[i - 1] != stride) return false;
    if (__builtin_mul_overflow(stride, shape[i - 1], &stride)) return false;
  }
  return true;
}

}  // namespace

// _rebuild_tensor_v2(storage, offset, size, stride, ..); v3 has the dtype as its seventh argument.
TorchTensor TorchArchive::tensor(const PickleValue& value, std::string_view name) const {
  const PickleValue* call = rebuilding(&value);
  BEV_CHECK(call != nullptr, ErrorKind::kInput, where_, ": ", quote(name), " is no tensor but ",
            name_of(value.kind));
  std::span<const PickleValue* const> arguments = call->arguments->items;
  std::vector<std::int64_t> strides;
  TorchTensor out;
  bool good = arguments.size() >= 4 && arguments[1]->as_int().value_or(-1) >= 0 &&
              read_sizes(*arguments[2], out.shape) && read_sizes(*arguments[3], strides) &&
              out.shape.size() == strides.size();
  BEV_CHECK(good, ErrorKind::kInput, where_, ": ", quote(name), " is a damaged tensor");
  std::string_view type;
  std::span<const std::byte> bytes = storage(*arguments[0], name, type);
  std::optional<Dtype> dtype = storage_dtype(type);
  if (type == "UntypedStorage" && arguments.size() >= 7) {
    type = without_module(arguments[6]->text);
    dtype = torch_dtype(type);
  }
  BEV_CHECK(dtype, ErrorKind::kInput, where_, ": ", quote(name), " is of type ", quote(type),
            ", which is not read");
  out.dtype = *dtype;
  std::int64_t count = static_cast<std::int64_t>(size_of(*dtype));
  for (std::int64_t dim : out.shape) {
    BEV_CHECK(!__builtin_mul_overflow(count, dim, &count), ErrorKind::kInput, where_, ": ",
              quote(name), " is impossibly large");
  }
  BEV_CHECK(count == 0 || row_major(out.shape, strides), ErrorKind::kInput, where_, ": ",
            quote(name), " is a transposed or strided view, which is not read");
  auto offset = static_cast<std::uint64_t>(*arguments[1]->as_int());
  bool fits = offset <= bytes.size() / size_of(*dtype) &&
              static_cast<std::uint64_t>(count) <= bytes.size() - offset * size_of(*dtype);
  BEV_CHECK(fits, ErrorKind::kInput, where_, ": ", quote(name), " is truncated: its storage has ",
            bytes.size(), " bytes");
  out.bytes = bytes.subspan(offset * size_of(*dtype), static_cast<std::size_t>(count));
  return out;
}

}  // namespace bev
