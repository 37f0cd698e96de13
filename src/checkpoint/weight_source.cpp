#include "checkpoint/weight_source.h"

#include "base/error.h"
#include "checkpoint/state_parts.h"

namespace bev {

void CheckpointWeights::check(const WeightMap& map) const {
  std::vector<std::string> problems;
  for (const ParamMapping& mapping : map.params()) {
    const GlobalTensor* stored = reader_.find(mapping.param);
    if (stored == nullptr) {
      problems.push_back(concat(mapping.param, " is missing"));
    } else if (!(stored->shape == mapping.shape)) {
      problems.push_back(
          concat(mapping.param, " is ", stored->shape, ", the model's is ", mapping.shape));
    }
  }
  BEV_CHECK(problems.empty(), ErrorKind::kInput, reader_.folder(),
            ": the weights do not fit its configuration:\n  ", join(problems, "\n  "));
}

Dtype CheckpointWeights::dtype(const ParamMapping& mapping, std::size_t) const {
  return reader_.find(mapping.param)->dtype;
}

std::span<const std::byte> CheckpointWeights::stored(const ParamMapping& mapping, std::size_t part,
                                                     Dtype dtype) {
  std::optional<Range> rows = rows_of_part(mapping, part);
  if (!rows || reader_.find(mapping.param)->dtype != dtype) return {};
  Box box = whole_box(mapping.shape);
  box.set(0, *rows);
  return reader_.stored(mapping.param, box);
}

void CheckpointWeights::read(const ParamMapping& mapping, Dtype dtype, void* out) {
  std::string main = main_name(mapping.param);
  bool from_main = reader_.find(mapping.param)->dtype != dtype && reader_.find(main) != nullptr;
  reader_.read(from_main ? main : mapping.param, whole_box(mapping.shape), dtype, out);
}

}  // namespace bev
