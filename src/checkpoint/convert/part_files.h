// Output of a conversion as files of parts: each part is a box of an output tensor, small enough
// for memory, and made of boxes of the source's tensors. Threads write whole files; what is done is
// recorded, so that the same conversion goes on after a kill.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/progress.h"
#include "bridge/torch/torch_writer.h"
#include "checkpoint/convert/resumable_folder.h"
#include "checkpoint/convert/state_source.h"

namespace bev {

// A box of a tensor of the source.
struct PartSource {
  std::string tensor;
  Box box;
};

// Elements of the sources, one after the other, in row-major order of the box.
struct OutputPart {
  std::string name;  // of the output tensor
  Box box;
  Dtype dtype = Dtype::kF32;
  std::vector<PartSource> sources;

  std::size_t bytes() const { return static_cast<std::size_t>(box.numel()) * size_of(dtype); }
};

struct PlannedFile {
  std::string name;
  std::vector<OutputPart> parts;

  std::uint64_t bytes() const;  // of the elements
};

struct PartSizes {
  std::size_t part_bytes = std::size_t{32} << 20, file_bytes = std::size_t{512} << 20;
};
// Boxes of at most so many bytes that cover the tensor in row-major order; one row of the last dim
// is never divided.
std::vector<Box> boxes_within(const Shape& shape, std::size_t item_bytes, std::size_t most_bytes);
// Parts in order, as files named `name` of their number.
std::vector<PlannedFile> files_of_parts(std::vector<OutputPart> parts, const PartSizes& sizes,
                                        std::string (*name)(std::size_t index));

// How a file begins, and what surrounds each of its parts.
class PartFormat {
 public:
  virtual ~PartFormat() = default;
  virtual std::string begin(const PlannedFile&) const { return ""; }
  virtual ArchiveFrame frame(const OutputPart&, std::span<const std::byte>) const { return {}; }
};

// Writes the files that the folder does not have yet. Returns all, in order. The first error of a
// thread is thrown after all have stopped.
std::vector<WrittenFile> write_part_files(const std::vector<PlannedFile>& files,
                                          StateSource& source, const PartFormat& format,
                                          ResumableFolder& folder, std::size_t threads);

// Text that is equal for equal files.
std::string plan_text(const std::vector<PlannedFile>& files);

}  // namespace bev
