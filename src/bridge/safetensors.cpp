#include "bridge/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "base/divide.h"
#include "base/error.h"
#include "base/json_check.h"

namespace bev {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");

namespace {
using Json = nlohmann::json;

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the reference's limit
constexpr std::size_t kLengthBytes = 8;
constexpr char kMetadataKey[] = "__metadata__";

struct DtypeRow {
  std::string_view name;
  unsigned bits;
  std::optional<Dtype> dtype;
};
constexpr std::array kDtypes = std::to_array<DtypeRow>({
    {"F64", 64, Dtype::kF64},
    {"F32", 32, Dtype::kF32},
    {"BF16", 16, Dtype::kBf16},
    {"F16", 16, Dtype::kF16},
    {"I64", 64, Dtype::kI64},
    {"I32", 32, Dtype::kI32},
    {"U8", 8, Dtype::kU8},
    {"BOOL", 8, std::nullopt},
    {"I8", 8, std::nullopt},
    {"I16", 16, std::nullopt},
    {"U16", 16, std::nullopt},
    {"U32", 32, std::nullopt},
    {"U64", 64, std::nullopt},
    {"C64", 64, std::nullopt},
    {"F4", 4, std::nullopt},
    {"F6_E2M3", 6, std::nullopt},
    {"F8_E4M3", 8, std::nullopt},
    {"F6_E3M2", 6, std::nullopt},
    {"F8_E5M2", 8, std::nullopt},
    {"F8_E8M0", 8, std::nullopt},
    {"F8_E4M3FNUZ", 8, std::nullopt},
    {"F8_E5M2FNUZ", 8, std::nullopt},
});

const DtypeRow* find_dtype(std::string_view name) {
  auto found = std::find_if(kDtypes.begin(), kDtypes.end(),
                            [&](const DtypeRow& row) { return row.name == name; });
  return found == kDtypes.end() ? nullptr : &*found;
}

std::string_view stored_name(Dtype dtype) {
  return std::find_if(kDtypes.begin(), kDtypes.end(),
                      [&](const DtypeRow& row) { return row.dtype == dtype; })
      ->name;
}

template <class... Parts>
[[noreturn]] void fail_input(const Parts&... parts) {
  BEV_FAIL(ErrorKind::kInput, parts...);
}

// Text of the header, with all bounds checked.
std::string_view header_text(std::span<const std::byte> bytes, const std::string& path) {
  if (bytes.size() < kLengthBytes) {
    fail_input(path, ": truncated: ", bytes.size(), " bytes, too short for a safetensors file");
  }
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), kLengthBytes);
  if (length > kMaxHeaderBytes) {
    fail_input(path, ": header length ", length, " is over the limit of ", kMaxHeaderBytes,
               " bytes: not a safetensors file, or corrupt");
  }
  if (length > bytes.size() - kLengthBytes) {
    fail_input(path, ": truncated: the header should have ", length, " bytes, the file has ",
               bytes.size() - kLengthBytes, " after its length");
  }
  std::string_view text(reinterpret_cast<const char*>(bytes.data()) + kLengthBytes, length);
  if (!text.starts_with('{')) fail_input(path, ": the header does not start with '{'");
  return text;
}

Metadata read_metadata(const Json& object, const std::string& path) {
  if (!object.is_object()) fail_input(path, ": ", kMetadataKey, " is not an object");
  Metadata metadata;
  for (const auto& [key, value] : object.items()) {
    if (!value.is_string()) {
      fail_input(path, ": ", kMetadataKey, " ", quote(key), " is not a string");
    }
    metadata.emplace_back(key, value.get<std::string>());
  }
  return metadata;
}

// Array of non-negative integers that fit std::int64_t.
std::vector<std::int64_t> read_sizes(const Json& entry, const char* key, const std::string& where) {
  auto found = entry.find(key);
  if (found == entry.end() || !found->is_array()) fail_input(where, ": no array '", key, "'");
  std::vector<std::int64_t> sizes;
  for (const Json& value : *found) {
    constexpr std::uint64_t kMost = std::numeric_limits<std::int64_t>::max();
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() > kMost) {
      fail_input(where, ": '", key, "' holds ", quote(value.dump()),
                 ", not a whole number from 0 to 2^63-1");
    }
    sizes.push_back(value.get<std::int64_t>());
  }
  return sizes;
}

std::string shape_text(std::span<const std::int64_t> shape) { return Json(shape).dump(); }

// Size of a tensor in bytes. The product of the nonzero dims must not overflow either, so that no
// partial product does.
std::uint64_t stored_bytes(const StoredTensor& tensor, unsigned bits, const std::string& where) {
  std::int64_t product = bits;
  bool empty = false;
  for (std::int64_t dim : tensor.shape) {
    empty = empty || dim == 0;
    if (dim != 0 && __builtin_mul_overflow(product, dim, &product)) {
      fail_input(where, ": shape ", quote(shape_text(tensor.shape)), " overflows");
    }
  }
  if (empty) return 0;
  if (product % 8 != 0) {
    fail_input(where, ": shape ", quote(shape_text(tensor.shape)), " of ", tensor.dtype_name,
               " does not fill whole bytes");
  }
  return static_cast<std::uint64_t>(product / 8);
}

StoredTensor read_entry(const std::string& name, const Json& entry, std::span<const std::byte> data,
                        const std::string& path) {
  std::string where = concat(path, ": tensor ", quote(name));
  if (!entry.is_object()) fail_input(where, ": its header entry is not an object");
  auto dtype = entry.find("dtype");
  if (dtype == entry.end() || !dtype->is_string()) fail_input(where, ": no text 'dtype'");

  StoredTensor tensor{.name = name, .dtype_name = dtype->get<std::string>()};
  tensor.shape = read_sizes(entry, "shape", where);
  std::vector<std::int64_t> offsets = read_sizes(entry, "data_offsets", where);
  if (offsets.size() != 2 || offsets[0] > offsets[1]) {
    fail_input(where, ": data_offsets ", quote(shape_text(offsets)), " are not [begin, end]");
  }
  auto begin = static_cast<std::uint64_t>(offsets[0]);
  auto end = static_cast<std::uint64_t>(offsets[1]);
  if (end > data.size()) {
    fail_input(where, ": truncated: its data ends at byte ", end, ", the file has ", data.size(),
               " bytes of data");
  }
  if (const DtypeRow* row = find_dtype(tensor.dtype_name)) {
    tensor.dtype = row->dtype;
    std::uint64_t expected = stored_bytes(tensor, row->bits, where);
    if (expected != end - begin) {
      fail_input(where, ": shape ", quote(shape_text(tensor.shape)), " of ", row->name, " needs ",
                 expected, " bytes, data_offsets give ", end - begin);
    }
  }
  tensor.bytes = data.subspan(begin, end - begin);
  return tensor;
}

// Tensors must tile the data: no overlap, no gap, nothing after the last.
void check_tiling(const std::vector<StoredTensor>& tensors, std::span<const std::byte> data,
                  const std::string& path) {
  std::vector<const StoredTensor*> order;
  for (const StoredTensor& tensor : tensors) order.push_back(&tensor);
  std::sort(order.begin(), order.end(), [](const StoredTensor* a, const StoredTensor* b) {
    return std::pair(a->bytes.data(), a->bytes.size()) <
           std::pair(b->bytes.data(), b->bytes.size());
  });
  const std::byte* end = data.data();
  for (const StoredTensor* tensor : order) {
    if (tensor->bytes.data() != end) {
      fail_input(path, ": tensor ", quote(tensor->name), " begins at byte ",
                 tensor->bytes.data() - data.data(), " of the data, ",
                 tensor->bytes.data() < end ? "inside another tensor" : "after a gap",
                 "; expected ", end - data.data());
    }
    end += tensor->bytes.size();
  }
  if (end != data.data() + data.size()) {
    fail_input(path, ": ", data.data() + data.size() - end, " bytes after the last tensor");
  }
}
}  // namespace

SafetensorsFile::SafetensorsFile(MappedFile file) : file_(std::move(file)) {
  const std::string& path = file_.path();
  std::string_view header = header_text(file_.bytes(), path);
  check_json(header, path, 8);
  std::span<const std::byte> data = file_.bytes().subspan(kLengthBytes + header.size());
  const Json entries = Json::parse(header);  // sorted by name
  for (const auto& [name, entry] : entries.items()) {
    if (name == kMetadataKey) {
      metadata_ = read_metadata(entry, path);
    } else {
      tensors_.push_back(read_entry(name, entry, data, path));
    }
  }
  check_tiling(tensors_, data, path);
}

const StoredTensor* SafetensorsFile::find(std::string_view name) const {
  auto found = std::lower_bound(
      tensors_.begin(), tensors_.end(), name,
      [](const StoredTensor& tensor, std::string_view wanted) { return tensor.name < wanted; });
  return found != tensors_.end() && found->name == name ? &*found : nullptr;
}

TensorBytes SafetensorsFile::tensor(std::string_view name) const {
  const StoredTensor* stored = find(name);
  if (stored == nullptr) fail_input(path(), ": no tensor ", quote(name));
  if (!stored->dtype) {
    fail_input(path(), ": tensor ", quote(name), " has dtype ", quote(stored->dtype_name),
               "; readable are F64, F32, BF16, F16, I64, I32, U8");
  }
  if (stored->shape.size() > Shape::kMaxDims) {
    fail_input(path(), ": tensor ", quote(name), " has ", stored->shape.size(),
               " dims; readable are at most ", Shape::kMaxDims);
  }
  return {*stored->dtype, Shape(stored->shape), stored->bytes};
}

void sort_for_alignment(std::vector<TensorSpec>& tensors) {
  std::stable_sort(tensors.begin(), tensors.end(), [](const TensorSpec& a, const TensorSpec& b) {
    return size_of(a.dtype) > size_of(b.dtype);
  });
}

std::string safetensors_header(const std::vector<TensorSpec>& tensors, const Metadata& metadata) {
  std::string text = "{";
  if (!metadata.empty()) {
    Json values = Json::object();
    for (const auto& [key, value] : metadata) values[key] = value;
    text += concat("\"", kMetadataKey, "\":", values.dump());
  }
  std::size_t offset = 0;
  for (const TensorSpec& tensor : tensors) {
    std::size_t end = offset + tensor.bytes();
    text += concat(text.size() > 1 ? "," : "", Json(tensor.name).dump(), ":{\"dtype\":\"",
                   stored_name(tensor.dtype), "\",\"shape\":", shape_text(tensor.shape.dims()),
                   ",\"data_offsets\":[", offset, ",", end, "]}");
    offset = end;
  }
  text += "}";
  text.resize(round_up(text.size(), 8), ' ');
  std::uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + text;
}

SafetensorsWriter::SafetensorsWriter(const std::string& path, std::vector<TensorSpec> tensors,
                                     const Metadata& metadata)
    : path_(path), tensors_(std::move(tensors)) {
  sort_for_alignment(tensors_);
  std::unordered_set<std::string_view> names{kMetadataKey};
  for (const TensorSpec& tensor : tensors_) {
    BEV_CHECK(names.insert(tensor.name).second, ErrorKind::kInternal, path_, ": tensor ",
              quote(tensor.name), " declared twice or under a reserved name");
  }
  std::string header;
  try {
    header = safetensors_header(tensors_, metadata);
  } catch (const Json::exception& error) {  // a name that is not UTF-8
    BEV_FAIL(ErrorKind::kInternal, path_, ": cannot write the header: ", error.what());
  }
  file_ = std::make_unique<AtomicFile>(path_);
  file_->write(header);
  skip_finished();
}

void SafetensorsWriter::skip_finished() {
  while (next_ < tensors_.size() && written_bytes_ == tensors_[next_].bytes()) {
    ++next_;
    written_bytes_ = 0;
  }
}

void SafetensorsWriter::write(std::string_view name, std::span<const std::byte> data) {
  if (data.empty()) return;  // also for a tensor without elements, which is never current
  BEV_CHECK(file_ != nullptr && !complete(), ErrorKind::kInternal, path_, ": tensor ", quote(name),
            " written when all data was complete");
  const TensorSpec& tensor = tensors_[next_];
  BEV_CHECK(tensor.name == name, ErrorKind::kInternal, path_, ": tensor ", quote(name),
            " written when it was the turn of ", quote(tensor.name));
  BEV_CHECK(data.size() <= tensor.bytes() - written_bytes_, ErrorKind::kInternal, path_,
            ": tensor ", quote(name), " has ", tensor.bytes(), " bytes, given ",
            written_bytes_ + data.size());
  file_->write(data.data(), data.size());
  written_bytes_ += data.size();
  skip_finished();
}

void SafetensorsWriter::commit() {
  BEV_CHECK(file_ != nullptr, ErrorKind::kInternal, path_, ": committed twice");
  BEV_CHECK(complete(), ErrorKind::kInternal, path_, ": the data of tensor ",
            quote(complete() ? "" : tensors_[next_].name), " is missing");
  file_->commit();
  file_.reset();
}

}  // namespace bev
