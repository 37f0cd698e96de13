#include "checkpoint/megatron/flattened_state.h"

#include "base/error.h"
#include "base/json_check.h"
#include "checkpoint/megatron/rank_params.h"

namespace bev {

namespace {

// "optimizer.state.exp_avg.NAME" -> NAME; "" for other names.
std::string_view parameter_of(std::string_view name) {
  constexpr std::string_view kState = "optimizer.state.";
  if (!name.starts_with(kState)) return "";
  name.remove_prefix(kState.size());
  std::size_t dot = name.find('.');
  return dot == std::string_view::npos ? "" : name.substr(dot + 1);
}

// The sizes of each rank's part; false if the state is no such flattened one.
bool part_sizes(const Shape& param, const Shape& state, Shape& part) {
  if (state.ndim() != param.ndim() + 1) return false;
  part = param;
  std::int64_t elements = 1;
  for (int i = 0; i < param.ndim(); ++i) {
    if (state[i] == 0 || param[i] % state[i] != 0) return false;
    part[i] = param[i] / state[i];
    elements *= part[i];
  }
  return elements == state[param.ndim()];
}

// Chunks lie in one part each: offsets (part, .., first element), sizes (1, .., elements).
Box part_box(const ForeignChunk& chunk, const Shape& part) {
  Box box = whole_box(part);
  for (int i = 0; i < part.ndim(); ++i) {
    std::int64_t begin = chunk.box.begin[i] * part[i];
    box.set(i, {begin, begin + part[i]});
  }
  return box;
}

}  // namespace

ForeignTensors unflattened(ForeignTensors tensors, const std::string& where) {
  for (auto& [name, state] : tensors) {
    auto param = tensors.find(parameter_of(name));
    if (param == tensors.end() || param->second.shape == state.shape) continue;
    Shape part;
    bool flat = part_sizes(param->second.shape, state.shape, part);
    BEV_CHECK(flat, ErrorKind::kInput, where, ": ", quote(name), " is ", state.shape,
              ", and its parameter ", param->second.shape);
    std::vector<ForeignChunk> chunks;
    for (const ForeignChunk& chunk : state.chunks) {
      bool one_part = true;
      for (int i = 0; i < part.ndim(); ++i) one_part = one_part && chunk.box.dim(i).size() == 1;
      BEV_CHECK(one_part, ErrorKind::kInput, where, ": ", quote(name),
                " has a part that spans several ranks' parts");
      add_flat_chunks({part_box(chunk, part)}, chunk.box.dim(part.ndim()), chunk, chunks);
    }
    state.chunks = std::move(chunks);
    state.shape = param->second.shape;
  }
  return tensors;
}

}  // namespace bev
