#include "checkpoint/weight_source.h"

#include <set>

#include "base/error.h"
#include "bridge/hf_model.h"
#include "checkpoint/owned_state.h"
#include "models/added_params.h"
#include "models/model.h"

namespace bev {

void CheckpointWeights::check(std::span<const ParamMapping> params) const {
  std::vector<std::string> problems;
  std::set<std::string_view> known;
  for (const ParamMapping& mapping : params) {
    known.insert(mapping.param);
    const GlobalTensor* stored = reader_.find(mapping.param);
    if (stored == nullptr) {
      problems.push_back(concat(mapping.param, " is missing"));
    } else if (!(stored->shape == mapping.shape)) {
      problems.push_back(
          concat(mapping.param, " is ", stored->shape, ", the model's is ", mapping.shape));
    }
  }
  for (const auto& [name, tensor] : reader_.manifest().tensors) {
    if (is_weight(name) && !known.contains(name)) {
      problems.push_back(concat(name, " is in the checkpoint and not in the model"));
    }
  }
  if (problems.empty()) return;
  constexpr std::size_t kMost = 10;
  if (problems.size() > kMost) {
    std::size_t more = problems.size() - kMost;
    problems.resize(kMost);
    problems.push_back(concat("and ", more, " more"));
  }
  BEV_FAIL(ErrorKind::kInput, reader_.folder(), ": the weights do not fit the model:\n  ",
           join(problems, "\n  "));
}

Dtype CheckpointWeights::dtype(const ParamMapping& mapping, std::size_t) const {
  return reader_.find(mapping.param)->dtype;
}

std::span<const std::byte> CheckpointWeights::stored(const ParamMapping& mapping, std::size_t part,
                                                     Dtype dtype) {
  std::optional<Range> elements = elements_of_part(mapping, part);
  if (!elements || reader_.find(mapping.param)->dtype != dtype) return {};
  std::vector<Box> boxes = boxes_of_range(mapping.shape, *elements);
  if (boxes.size() != 1) return {};
  return reader_.stored(mapping.param, boxes.front());
}

void CheckpointWeights::read(const ParamMapping& mapping, Range elements, Dtype dtype, void* out) {
  std::string main = main_name(mapping.param);
  bool from_main = reader_.find(mapping.param)->dtype != dtype && reader_.find(main) != nullptr;
  auto* to = static_cast<std::byte*>(out);
  for (const Box& box : boxes_of_range(mapping.shape, elements)) {
    reader_.read(from_main ? main : mapping.param, box, dtype, to);
    to += static_cast<std::size_t>(box.shape().numel()) * size_of(dtype);
  }
}

void load_checkpoint_weights(RankModel& model, CheckpointReader& reader) {
  auto whole = [](const Param& param) {
    ParamMapping mapping;
    mapping.param = param.name;
    mapping.shape = param.shape;
    return mapping;
  };
  // Adapters may come from elsewhere.
  auto wanted = [&](const Param& param) {
    return !is_added_name(param.name) || reader.find(param.name) != nullptr;
  };
  std::vector<ParamMapping> all;
  for (const Param& param : declare_params(model.options().model)) {
    if (wanted(param)) all.push_back(whole(param));
  }
  CheckpointWeights weights(reader);
  weights.check(all);
  for (const Param* param : model.store().params()) {
    if (!wanted(*param)) continue;
    KeptPart part(model, *param);
    for (const KeptPart::Run& run : part.runs()) {
      weights.read(whole(*param), run.elements, part.dtype(), run.out);
    }
    part.store();
  }
}

}  // namespace bev
