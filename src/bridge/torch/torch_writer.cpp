#include "bridge/torch/torch_writer.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "bridge/torch/zip_archive.h"

namespace bev {

namespace {

struct TypeNames {
  Dtype dtype;
  std::string_view name, storage;
};
constexpr auto kTypes = std::to_array<TypeNames>({
    {Dtype::kF32, "float32", "FloatStorage"},
    {Dtype::kF64, "float64", "DoubleStorage"},
    {Dtype::kF16, "float16", "HalfStorage"},
    {Dtype::kBf16, "bfloat16", "BFloat16Storage"},
    {Dtype::kI64, "int64", "LongStorage"},
    {Dtype::kI32, "int32", "IntStorage"},
    {Dtype::kU8, "uint8", "ByteStorage"},
});

const TypeNames& names_of(Dtype dtype) {
  return *std::ranges::find(kTypes, dtype, &TypeNames::dtype);
}

std::int64_t product(const std::vector<std::int64_t>& shape) {
  std::int64_t count = 1;
  for (std::int64_t dim : shape) count *= dim;
  return count;
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

void add_entry(std::string& out, ZipWriter& zip, const std::string& name, std::string_view bytes) {
  out += zip.begin_entry(name, bytes.size(), crc32_of(bytes_of(bytes)));
  out += bytes;
}

constexpr std::string_view kArchive = "archive";

// What comes first and last in every archive.
void add_pickle(std::string& out, ZipWriter& zip, std::string_view folder,
                std::string_view pickle) {
  add_entry(out, zip, concat(folder, "/data.pkl"), pickle);
  add_entry(out, zip, concat(folder, "/byteorder"), "little");
}
void add_end(std::string& out, ZipWriter& zip, std::string_view folder) {
  add_entry(out, zip, concat(folder, "/version"), "3\n");
  out += zip.end();
}

}  // namespace

std::string_view torch_type_name(Dtype dtype) { return names_of(dtype).name; }

void put_tensor(PickleWriter& pickle, const ArchiveTensor& tensor) {
  pickle.begin_call("torch._utils", "_rebuild_tensor_v2");
  pickle.begin_tuple();
  pickle.begin_tuple();
  pickle.text("storage");
  pickle.global("torch", names_of(tensor.dtype).storage);
  pickle.text(tensor.key);
  pickle.text("cpu");
  pickle.integer(product(tensor.shape));
  pickle.end_tuple();
  pickle.persistent();
  pickle.integer(0);
  pickle.integers(tensor.shape);
  std::vector<std::int64_t> strides(tensor.shape.size(), 1);
  for (std::size_t i = strides.size(); i > 1; --i) {
    strides[i - 2] = strides[i - 1] * tensor.shape[i - 1];
  }
  pickle.integers(strides);
  pickle.boolean(false);
  pickle.begin_call("collections", "OrderedDict");
  pickle.integers({});
  pickle.end_call();
  pickle.end_tuple();
  pickle.end_call();
}

ArchiveFrame tensor_archive(Dtype dtype, const std::vector<std::int64_t>& shape,
                            std::span<const std::byte> elements) {
  PickleWriter pickle;
  put_tensor(pickle, {"0", dtype, shape});
  ArchiveFrame out;
  ZipWriter zip;
  add_pickle(out.before, zip, kArchive, pickle.take());
  out.before += zip.begin_entry(concat(kArchive, "/data/0"), elements.size(), crc32_of(elements));
  add_end(out.after, zip, kArchive);
  return out;
}

std::string object_archive(std::string_view name, std::string_view pickle,
                           const std::vector<ArchiveStorage>& storages) {
  std::string out;
  ZipWriter zip;
  add_pickle(out, zip, name, pickle);
  for (const ArchiveStorage& storage : storages) {
    add_entry(out, zip, concat(name, "/data/", storage.key), storage.bytes);
  }
  add_end(out, zip, name);
  return out;
}

}  // namespace bev
