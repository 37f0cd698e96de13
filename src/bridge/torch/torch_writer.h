// Archives as torch.save writes them: of one tensor, and of objects with small tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bridge/torch/pickle_writer.h"
#include "tensor/dtype.h"

namespace bev {

// torch's name of a type, without "torch.".
std::string_view torch_type_name(Dtype dtype);

// A tensor that the pickle of an archive refers to, whose bytes are the archive's storage `key`.
struct ArchiveTensor {
  std::string key;
  Dtype dtype = Dtype::kF32;
  std::vector<std::int64_t> shape;
};
void put_tensor(PickleWriter& pickle, const ArchiveTensor& tensor);

// What lies before and after the elements of a tensor in its archive.
struct ArchiveFrame {
  std::string before, after;
};
ArchiveFrame tensor_archive(Dtype dtype, const std::vector<std::int64_t>& shape,
                            std::span<const std::byte> elements);

// A whole archive of a pickle and its storages; `name` is that of its folder.
struct ArchiveStorage {
  std::string key, bytes;
};
std::string object_archive(std::string_view name, std::string_view pickle,
                           const std::vector<ArchiveStorage>& storages = {});

}  // namespace bev
