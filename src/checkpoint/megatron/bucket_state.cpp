#include "checkpoint/megatron/bucket_state.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/divide.h"
#include "base/error.h"
#include "base/json_check.h"

namespace bev {

namespace {

constexpr std::string_view kDistributed = "optimizer.distributed.";
constexpr std::int64_t kAlignment = 64;  // of a parameter in a buffer, in elements

// Takes "WORDNUMBER." off the text; nullopt if it does not begin so.
std::optional<std::int64_t> take_number(std::string_view word, std::string_view& text) {
  if (!text.starts_with(word)) return std::nullopt;
  std::int64_t number = 0;
  const char *begin = text.data() + word.size(), *last = text.data() + text.size();
  auto [end, error] = std::from_chars(begin, last, number);
  if (error != std::errc() || number < 0 || end == last || *end != '.') return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end + 1 - text.data()));
  return number;
}

struct BucketName {
  std::int64_t optimizer = 0, group = 0, buffer = 0, bucket = 0;
  std::string state;  // exp_avg ..
};

std::optional<BucketName> parse_bucket(std::string_view name) {
  BucketName out;
  if (auto number = take_number("chained_", name)) out.optimizer = *number;
  if (!name.starts_with(kDistributed)) return std::nullopt;
  name.remove_prefix(kDistributed.size());
  auto group = take_number("dp_group_idx_", name), buffer = take_number("gbuf_idx_", name);
  std::size_t bucket_at = name.find("bucket_idx_");
  if (!group || !buffer || bucket_at == std::string_view::npos) return std::nullopt;
  name.remove_prefix(bucket_at);
  auto bucket = take_number("bucket_idx_", name);
  if (!bucket) return std::nullopt;
  return BucketName{out.optimizer, *group, *buffer, *bucket, std::string(name)};
}

// One state of one buffer of one rank: its buckets in order.
using Buckets = std::map<std::int64_t, const ForeignTensor*>;
struct Buffer {
  std::int64_t optimizer = 0, group = 0, index = 0;
  std::map<std::string, Buckets> states;
};

std::vector<Buffer> list_buffers(const ForeignTensors& tensors) {
  std::map<std::vector<std::int64_t>, Buffer> found;
  for (const auto& [name, tensor] : tensors) {
    std::optional<BucketName> parsed = parse_bucket(name);
    if (!parsed || tensor.shape.ndim() != 1) continue;
    Buffer& buffer = found[{parsed->optimizer, parsed->group, parsed->buffer}];
    buffer.optimizer = parsed->optimizer;
    buffer.group = parsed->group;
    buffer.index = parsed->buffer;
    buffer.states[parsed->state][parsed->bucket] = &tensor;
  }
  std::vector<Buffer> out;
  for (auto& entry : found) out.push_back(std::move(entry.second));
  return out;
}

// The bucket of each parameter and its first element there.
struct BucketPlace {
  std::int64_t bucket = 0, at = 0;
};

// Megatron's _ParamAndGradBuffer: where each parameter lies, in the order of `params`, which is the
// reverse of that of the buffer. Empty if the sizes of the buckets do not fit.
std::vector<BucketPlace> place_params(const std::vector<RankParam>& params,
                                      const Buckets& buckets) {
  std::vector<BucketPlace> places(params.size());
  std::int64_t bucket = 0, at = 0;
  for (std::size_t i = params.size(); i > 0; --i) {
    at = round_up(at, kAlignment);
    auto held = buckets.find(bucket);
    if (held != buckets.end() && at >= held->second->shape[0]) {
      held = buckets.find(++bucket);
      at = 0;
    }
    std::int64_t end = at + params[i - 1].numel();
    if (held == buckets.end() || end > held->second->shape[0]) return {};
    places[i - 1] = {bucket, at};
    at = end;
  }
  bool all = bucket + 1 == static_cast<std::int64_t>(buckets.size());
  return all && at == buckets.find(bucket)->second->shape[0] ? places : std::vector<BucketPlace>();
}

MegatronRank rank_of(const Buffer& buffer, const MegatronLayout& layout, bool experts) {
  MegatronRank rank;
  rank.chunk = buffer.index;
  if (experts) {
    rank.etp = buffer.group % layout.etp;
    rank.ep = buffer.group / layout.etp % layout.ep;
    rank.pp = buffer.group / (layout.etp * layout.ep);
  } else {
    rank.tp = buffer.group % layout.tp;
    rank.pp = buffer.group / layout.tp;
  }
  return rank;
}

// Whether the rank's copy of a parameter counts: ranks that do not divide it hold the same, and the
// head of a tied model is the embedding.
bool counts(const RankParam& param, const MegatronRank& rank, const ModelConfig& config) {
  bool copy = cut_of(param.name, config.gated) == MegatronCut::kWhole &&
              (param.expert ? rank.etp : rank.tp) > 0;
  bool tied = param.name == "output_layer.weight" && !config.untie_embeddings_and_output_weights;
  return !copy && !tied;
}

// The parameter's elements in the chunks of its bucket.
void add_chunks(const RankParam& param, const BucketPlace& place, const Buckets& buckets,
                ForeignTensor& out) {
  const ForeignTensor& bucket = *buckets.find(place.bucket)->second;
  std::int64_t end = place.at + param.numel();
  for (const ForeignChunk& chunk : bucket.chunks) {
    Range held = chunk.box.dim(0);
    Range common{std::max(held.begin, place.at), std::min(held.end, end)};
    if (common.begin >= common.end) continue;
    ForeignChunk stored = chunk;
    stored.first += common.begin - held.begin;
    add_flat_chunks(param.boxes, {common.begin - place.at, common.end - place.at}, stored,
                    out.chunks);
  }
}

// Adds the state of a buffer; false if the parameters do not fit its buckets.
bool add_buffer(const Buffer& buffer, const ModelConfig& config, const MegatronLayout& layout,
                bool experts, ModuleKind kind, ForeignTensors& out) {
  MegatronRank rank = rank_of(buffer, layout, experts);
  if (rank.pp >= layout.pp || rank.chunk >= layout.vpp) return false;
  std::vector<RankParam> params = rank_params(config, layout, rank, kind);
  std::erase_if(params, [&](const RankParam& param) { return param.expert != experts; });
  for (const auto& [state, buckets] : buffer.states) {
    std::vector<BucketPlace> places = place_params(params, buckets);
    if (places.size() != params.size()) return false;
    for (std::size_t i = 0; i < params.size(); ++i) {
      if (!counts(params[i], rank, config)) continue;
      auto [entry, added] =
          out.try_emplace(concat("optimizer.state.", state, ".", params[i].name), ForeignTensor{});
      entry->second.dtype = buckets.begin()->second->dtype;
      entry->second.shape = params[i].global;
      add_chunks(params[i], places[i], buckets, entry->second);
    }
  }
  return true;
}

// The state of all buffers; nullopt if they are not of such a model.
std::optional<ForeignTensors> state_of_buffers(const std::vector<Buffer>& buffers,
                                               const ModelConfig& config,
                                               const MegatronLayout& layout, ModuleKind kind) {
  ForeignTensors out;
  // The optimizer of the experts is the last of the chain.
  std::int64_t last = buffers.back().optimizer;
  for (const Buffer& buffer : buffers) {
    bool experts = config.moe.any() && buffer.optimizer == last && last > 0;
    if (!add_buffer(buffer, config, layout, experts, kind, out)) return std::nullopt;
  }
  return out;
}

}  // namespace

bool has_bucket_state(const ForeignTensors& tensors) {
  return std::ranges::any_of(
      tensors, [](const auto& entry) { return parse_bucket(entry.first).has_value(); });
}

ForeignTensors bucket_state(const ModelConfig& config, const MegatronLayout& layout,
                            ModuleKind kind, const ForeignTensors& tensors) {
  std::optional<ForeignTensors> state;
  if (!layout.listed) state = state_of_buffers(list_buffers(tensors), config, layout, kind);
  if (!state) return {};
  for (const auto& [name, tensor] : tensors) {
    if (!parse_bucket(name)) state->emplace(name, tensor);
  }
  return std::move(*state);
}

}  // namespace bev
