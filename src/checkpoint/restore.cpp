#include "checkpoint/restore.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "bridge/nf4_tensor.h"
#include "checkpoint/owned_state.h"
#include "kernels/device.h"
#include "models/added_params.h"
#include "parallel/store/nf4_weights.h"

namespace bev {

namespace {

using GlobalTensors = std::map<std::string, GlobalTensor>;

// Parameters of the model that have moments in this run: those that the checkpoint has too, and
// those that were frozen in the run that saved it.
struct MomentSources {
  std::set<std::string> stored, fresh;

  MomentSources(const GlobalTensors& wanted, const CheckpointReader& reader) {
    std::set<std::string> missing;
    for (const auto& entry : wanted) {
      std::string param = moment_of(entry.first);
      if (param.empty()) continue;
      (reader.find(entry.first) != nullptr ? stored : missing).insert(param);
    }
    if (stored.empty()) return;  // a checkpoint of weights alone, or of another optimizer
    std::ranges::set_difference(missing, stored, std::inserter(fresh, fresh.end()));
  }
};

// Master weights may be missing if one of the two runs keeps none; the weights are used then.
GlobalTensors check_tensors(const Engine& engine, const CheckpointReader& reader,
                            bool with_optimizer) {
  std::vector<std::string> problems;
  GlobalTensors wanted = global_tensors(engine.model().options(), with_optimizer);
  const auto quantized = nf4_params(engine.model().options());
  MomentSources moments(wanted, reader);
  // A base model without adapters or without a critic: they keep their initial values.
  bool without_adapters = std::ranges::none_of(
      reader.manifest().tensors, [](const auto& tensor) { return is_adapter_name(tensor.first); });
  const bool without_critic = reader.find(kValueHead) == nullptr;
  for (const auto& [name, tensor] : wanted) {
    if (without_adapters && is_adapter_name(name)) continue;
    if (without_critic && is_critic_name(name)) continue;
    const GlobalTensor* stored = reader.find(name);
    if (stored == nullptr) {
      bool fresh = moments.fresh.contains(moment_of(name));
      if (!is_main_name(name) && !is_optional(name) && !fresh)
        problems.push_back(concat(name, " is not in the checkpoint"));
    } else if (!(stored->shape == tensor.shape)) {
      problems.push_back(
          concat(name, " is ", tensor.shape, ", the checkpoint's is ", stored->shape));
    }
  }
  for (const auto& [name, tensor] : reader.manifest().tensors) {
    if (is_weight(name) && !wanted.contains(name) && !quantized.contains(name)) {
      problems.push_back(concat(name, " is in the checkpoint and not in this model"));
    }
  }
  if (problems.empty()) return wanted;
  constexpr std::size_t kMost = 10;
  std::string text = concat(reader.folder(), ": does not fit this run",
                            with_optimizer ? " (--no-load-optim takes the weights alone):" : ":");
  for (std::size_t i = 0; i < std::min(kMost, problems.size()); ++i) text += "\n  " + problems[i];
  if (problems.size() > kMost) text += concat("\n  and ", problems.size() - kMost, " more");
  throw Error(ErrorKind::kInput, text);
}

// Fills parts from tensors of the checkpoint, in chunks that fit the caches.
class PartFiller {
 public:
  PartFiller(Engine& engine, CheckpointReader& reader) : engine_(engine), reader_(reader) {}

  void fill(const StatePart& part, const std::string& from) {
    constexpr std::int64_t kMostElements = std::int64_t{1} << 20;
    Context& ctx = engine_.model().ctx();
    if (from.empty()) {
      ctx.kernels.fill(ctx.stream, part.memory, 0);
      if (part.packed()) ctx.kernels.fill(ctx.stream, part.scales, kLeastMomentScale);
      return;
    }
    for (std::int64_t begin = part.range.begin; begin < part.range.end; begin += kMostElements) {
      Range range{begin, std::min(begin + kMostElements, part.range.end)};
      read(part, from, range);
      std::int64_t at = begin - part.range.begin;
      if (part.packed()) pack(part, range.size());
      ctx.kernels.device.upload(ctx.stream, flat_.data(), part.memory.rows(at, at + range.size()));
      if (!part.packed()) continue;
      static_assert(kMostElements % kMomentBlock == 0);
      std::int64_t block = at / kMomentBlock;
      View scales = part.scales.rows(block, block + moment_blocks(range.size()));
      ctx.kernels.device.upload(ctx.stream, scales_.data(), scales);
    }
  }

 private:
  // Packs the values in flat_ into 8-bit moments. The round trip is exact: a block gets its
  // original bytes.
  void pack(const StatePart& part, std::int64_t count) {
    codes_.resize(static_cast<std::size_t>(count));
    scales_.resize(static_cast<std::size_t>(moment_blocks(count)));
    pack_moments(part.format, reinterpret_cast<const float*>(flat_.data()), nullptr, count,
                 codes_.data(), scales_.data());
    std::memcpy(flat_.data(), codes_.data(), codes_.size());
  }

  // Reads elements `range` of the flattened local parameter into flat_; 8-bit moments as f32.
  void read(const StatePart& part, const std::string& from, Range range) {
    const Param& param = *part.param;
    ParamPart cut = part_of(param.split, engine_.model().mesh());
    Dtype dtype = part.packed() ? Dtype::kF32 : part.memory.dtype;
    std::size_t item = size_of(dtype);
    flat_.resize(static_cast<std::size_t>(range.size()) * item);
    for (const HeldBox& held : held_boxes(param.shape, param.split, cut, range)) {
      std::vector<BoxRun> runs = common_runs(whole_box(param.local), held.local, held.local);
      auto place = [&](const BoxRun& run) {
        return flat_.data() + static_cast<std::size_t>(run.a - range.begin) * item;
      };
      if (runs.size() == 1) {
        reader_.read(from, held.global, dtype, place(runs.front()));
        continue;
      }
      boxed_.resize(static_cast<std::size_t>(held.global.numel()) * item);
      reader_.read(from, held.global, dtype, boxed_.data());
      for (const BoxRun& run : runs) {
        std::memcpy(place(run), boxed_.data() + static_cast<std::size_t>(run.b) * item,
                    static_cast<std::size_t>(run.count) * item);
      }
    }
  }

  Engine& engine_;
  CheckpointReader& reader_;
  std::vector<std::byte> flat_, boxed_;
  std::vector<std::uint8_t> codes_, scales_;
};

// A part of the state and its source tensor in the checkpoint; "": it starts at 0.
struct Restored {
  std::string from;
  StatePart part;
};

// Weights first, then the optimizer's state.
std::vector<Restored> parts_to_restore(Engine& engine, const CheckpointReader& reader,
                                       bool with_optimizer) {
  std::vector<Restored> out;
  for (const Param* param : engine.model().store().params()) {
    if (param->format == ParamFormat::kNf4) continue;
    if (is_added_name(param->name) && reader.find(param->name) == nullptr) continue;
    ValueRange kept = engine.model().store().kept_value(*param);
    // Weights stored in another dtype were rounded; read the master weights instead.
    std::string main = main_name(param->name);
    bool rounded = reader.find(param->name)->dtype != kept.value.dtype;
    bool from_main = with_optimizer && rounded && reader.find(main) != nullptr;
    out.push_back({from_main ? main : param->name, {param->name, param, kept.range, kept.value}});
  }
  if (engine.optimizer() == nullptr || !with_optimizer) return out;
  for (StatePart& part : owned_optimizer_state(engine)) {
    const std::string& name = part.param->name;
    if (is_added_name(name) && reader.find(name) == nullptr) continue;
    std::string from = part.name;
    if (reader.find(from) == nullptr) from = moment_of(from).empty() ? part.param->name : "";
    out.push_back({std::move(from), std::move(part)});
  }
  for (StatePart& part : scale_state(engine)) {
    if (reader.find(part.name) != nullptr) out.push_back({part.name, std::move(part)});
  }
  return out;
}

// Quantises weights that a checkpoint of a run without NF4 has. One of a run with it has none, and
// the weights stay those that were read before.
void restore_nf4(Engine& engine, CheckpointReader& reader) {
  for (const Param* param : engine.model().store().params()) {
    const GlobalTensor* stored = reader.find(param->name);
    if (param->format != ParamFormat::kNf4 || stored == nullptr) continue;
    Nf4Format format = param->nf4;
    format.dtype = stored->dtype == Dtype::kF64 ? Dtype::kF32 : stored->dtype;
    std::vector<std::byte> values(static_cast<std::size_t>(param->shape.numel()) *
                                  size_of(format.dtype));
    reader.read(param->name, whole_box(param->shape), format.dtype, values.data());
    Nf4Tensor whole = quantize_tensor(param->name, param->shape, values.data(), format);
    Nf4Part part(*param, part_of(param->split, engine.model().mesh()));
    part.add({whole.codes, &whole.scales, 0, 0, param->shape.numel()});
    engine.model().store().set_nf4(*param, part.bytes());
  }
}

// Since when the moments of parameters are there that were not always.
void restore_late_starts(Engine& engine, const CheckpointReader& reader,
                         const GlobalTensors& wanted) {
  MomentSources moments(wanted, reader);
  std::map<std::string, std::int64_t> starts = reader.manifest().late_starts;
  std::erase_if(starts, [&](const auto& start) { return !moments.stored.contains(start.first); });
  for (const std::string& param : moments.fresh) starts[param] = reader.manifest().state.updates;
  engine.optimizer()->set_late_starts(std::move(starts));
  if (moments.fresh.empty() || engine.model().mesh().world().rank() != 0) return;
  log_info(concat(reader.folder(), ": has no moments of ", moments.fresh.size(),
                  " parameters, which were frozen; theirs begin at 0, the first being ",
                  *moments.fresh.begin()));
}

}  // namespace

void restore_tensors(Engine& engine, CheckpointReader& reader, bool with_optimizer) {
  GlobalTensors wanted = check_tensors(engine, reader, with_optimizer);
  if (engine.optimizer() != nullptr) restore_late_starts(engine, reader, wanted);
  restore_nf4(engine, reader);
  PartFiller filler(engine, reader);
  for (const Restored& restored : parts_to_restore(engine, reader, with_optimizer)) {
    filler.fill(restored.part, restored.from);
  }
  bool derived = engine.optimizer() != nullptr && !with_optimizer;
  if (derived) engine.weights_written();
}

std::vector<bool> shards_to_restore(Engine& engine, const CheckpointReader& reader,
                                    bool with_optimizer) {
  check_tensors(engine, reader, with_optimizer);
  std::vector<bool> needed(reader.manifest().shards.size());
  for (const auto& [from, part] : parts_to_restore(engine, reader, with_optimizer)) {
    if (from.empty()) continue;
    const Param& param = *part.param;
    ParamPart cut = part_of(param.split, engine.model().mesh());
    for (const HeldBox& held : held_boxes(param.shape, param.split, cut, part.range)) {
      reader.add_shards(from, held.global, needed);
    }
  }
  return needed;
}

}  // namespace bev
