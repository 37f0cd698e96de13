// What torch.save writes: a zip archive with a pickle, data.pkl, and the storages of its tensors.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bridge/torch/pickle.h"
#include "bridge/torch/zip_archive.h"
#include "tensor/dtype.h"

namespace bev {

// A tensor whose elements lie row-major in `bytes`, which may be unaligned.
struct TorchTensor {
  Dtype dtype = Dtype::kF32;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;
};

// Our type for one of torch's, by its name without "torch."; nullopt for types that are not read.
std::optional<Dtype> torch_dtype(std::string_view name);

class TorchArchive {
 public:
  // Throws Error(kInput) that begins with `where`. The bytes must outlive it.
  TorchArchive(std::span<const std::byte> bytes, std::string where);

  const PickleValue& root() const { return pickle_->root(); }
  const ZipArchive& zip() const { return zip_; }
  // Whether the value is a tensor.
  static bool is_tensor(const PickleValue& value);
  // The tensor, which lies in the archive; throws Error(kInput) for types that are not read, for
  // other orders of elements than row-major, and if its storage is too short.
  TorchTensor tensor(const PickleValue& value, std::string_view name) const;

 private:
  std::span<const std::byte> storage(const PickleValue& reference, std::string_view name,
                                     std::string_view& type) const;

  std::string where_;
  ZipArchive zip_;
  std::string folder_;  // of all entries, with a slash
  std::unique_ptr<Pickle> pickle_;
};

}  // namespace bev
