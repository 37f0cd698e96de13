// The safetensors format: 8 bytes of header length, a JSON header, then the tensors' bytes without
// gaps. Reading maps the file, copies nothing and accepts exactly what the reference accepts.
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

// Header entry. `dtype` is nullopt for types without compute support (F8_E4M3, BOOL, ...).
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

// A memory-mapped file. Throws Error(kInput) naming file and tensor if it is inconsistent.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path) : SafetensorsFile(MappedFile(path)) {}
  explicit SafetensorsFile(MappedFile file);

  const std::string& path() const { return file_.path(); }
  const Metadata& metadata() const { return metadata_; }
  // All entries, sorted by name.
  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  // nullptr if there is none.
  const StoredTensor* find(std::string_view name) const;
  // Throws Error(kInput) if there is none, or its dtype or number of dims is not supported.
  TensorBytes tensor(std::string_view name) const;

 private:
  MappedFile file_;
  Metadata metadata_;
  std::vector<StoredTensor> tensors_;
};

// Declaration of a tensor to be written.
struct TensorSpec {
  std::string name;
  Dtype dtype = Dtype::kF32;
  Shape shape;

  std::size_t bytes() const { return static_cast<std::size_t>(shape.numel()) * size_of(dtype); }
};

// Stable sort by element size, largest first: with the padded header this aligns every tensor to
// its dtype, as PyTorch requires. With a single dtype the order is unchanged.
void sort_for_alignment(std::vector<TensorSpec>& tensors);

// Start of a file: header length and header.
std::string safetensors_header(const std::vector<TensorSpec>& tensors,
                               const Metadata& metadata = {{"format", "pt"}});

// Writes one file atomically: all tensors are declared first, then their data is written in the
// order of tensors(). Output is deterministic.
class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::string& path, std::vector<TensorSpec> tensors,
                    const Metadata& metadata = {{"format", "pt"}});

  // In writing order, sorted for alignment.
  const std::vector<TensorSpec>& tensors() const { return tensors_; }
  // Writes all or the next part of the current tensor.
  void write(std::string_view name, std::span<const std::byte> data);
  bool complete() const { return next_ == tensors_.size(); }
  // Renames the file into place. All data must have been written.
  void commit();

 private:
  void skip_finished();

  std::string path_;
  std::vector<TensorSpec> tensors_;
  std::size_t next_ = 0;           // current tensor
  std::size_t written_bytes_ = 0;  // bytes written of it
  std::unique_ptr<AtomicFile> file_;
};

}  // namespace bev
