// The safetensors format: 8 bytes of header length, a JSON header, then the tensors' bytes without
// gaps. Reading maps the file and accepts exactly what the reference accepts; nothing is copied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/file.h"
#include "tensor/dtype.h"
#include "tensor/shape.h"

namespace bev {

// An entry of the header as stored. `dtype` is empty for types we cannot compute with (F8_E4M3,
// BOOL, ...).
struct StoredTensor {
  std::string name;
  std::string dtype_name;
  std::optional<Dtype> dtype = std::nullopt;
  std::vector<std::int64_t> shape = {};
  std::span<const std::byte> bytes = {};
};

// A readable tensor. The bytes live as long as the file object and may be unaligned: copy, do not
// cast.
struct TensorBytes {
  Dtype dtype = Dtype::kF32;
  Shape shape;
  std::span<const std::byte> bytes;
};

using Metadata = std::vector<std::pair<std::string, std::string>>;

// One file, mapped. Error(kInput) naming the file and the tensor when anything in it is
// inconsistent.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path) : SafetensorsFile(MappedFile(path)) {}
  explicit SafetensorsFile(MappedFile file);

  const std::string& path() const { return file_.path(); }
  const Metadata& metadata() const { return metadata_; }
  // All entries, sorted by name.
  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  // nullptr when there is none.
  const StoredTensor* find(std::string_view name) const;
  // Error(kInput) when there is none, or its dtype or number of dims is beyond us.
  TensorBytes tensor(std::string_view name) const;

 private:
  MappedFile file_;
  Metadata metadata_;
  std::vector<StoredTensor> tensors_;
};

// What a writer will be given.
struct TensorSpec {
  std::string name;
  Dtype dtype = Dtype::kF32;
  Shape shape;

  std::size_t bytes() const { return static_cast<std::size_t>(shape.numel()) * size_of(dtype); }
};

// Larger elements first, otherwise as given: with the padded header this aligns every tensor to its
// dtype, which PyTorch needs. With one dtype the order stays as given.
void sort_for_alignment(std::vector<TensorSpec>& tensors);

// What a file begins with: the length of the header and the header.
std::string safetensors_header(const std::vector<TensorSpec>& tensors,
                               const Metadata& metadata = {{"format", "pt"}});

// Writes one file, atomically: all tensors are declared first, their data follows in the order of
// tensors(). The same tensors give the same bytes.
class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::string& path, std::vector<TensorSpec> tensors,
                    const Metadata& metadata = {{"format", "pt"}});

  // Sorted for alignment: the order in which to write.
  const std::vector<TensorSpec>& tensors() const { return tensors_; }
  // The whole or the next part of the tensor whose turn it is.
  void write(std::string_view name, std::span<const std::byte> data);
  bool complete() const { return next_ == tensors_.size(); }
  // Makes the file appear. All data must have been written.
  void commit();

 private:
  void skip_finished();

  std::string path_;
  std::vector<TensorSpec> tensors_;
  std::size_t next_ = 0;           // the tensor whose turn it is
  std::size_t written_bytes_ = 0;  // of that tensor
  std::unique_ptr<AtomicFile> file_;
};

}  // namespace bev
