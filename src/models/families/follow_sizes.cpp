#include "models/families/follow_sizes.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/divide.h"

namespace bev {

namespace {

using Given = FunctionRef<bool(std::string_view flag)>;
using Marks = std::vector<std::int64_t>;

// A width in the same proportion: a whole multiple stays one, others become multiples of 8.
std::int64_t scaled_width(std::int64_t width, std::int64_t from, std::int64_t to) {
  if (width % from == 0) return width / from * to;
  return round_up(ceil_div(width * to, from), 8);
}

// The largest divisor of `number` that is at most `most`, at least 1.
std::int64_t divisor_up_to(std::int64_t number, std::int64_t most) {
  std::int64_t divisor = std::clamp<std::int64_t>(most, 1, number);
  while (number % divisor != 0) --divisor;
  return divisor;
}

// A list of one mark for each layer, for another number of layers: a pattern that repeats goes on;
// of others (leading dense layers) the first layers and the last one are kept.
Marks marks_for(const Marks& marks, std::int64_t layers) {
  const auto count = static_cast<std::int64_t>(marks.size());
  auto at = [&](std::int64_t layer) { return marks[static_cast<std::size_t>(layer)]; };
  std::int64_t period = 1;
  auto repeats = [&] {
    for (std::int64_t layer = period; layer < count; ++layer) {
      if (at(layer) != at(layer - period)) return false;
    }
    return true;
  };
  while (!repeats()) ++period;
  Marks out;
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    bool last = layer >= std::min(layers, count) - 1;
    out.push_back(2 * period <= count ? at(layer % period) : at(last ? count - 1 : layer));
  }
  return out;
}

void follow_heads(const ModelConfig& base, Given given, ModelConfig& model) {
  const std::int64_t heads = model.num_attention_heads, base_heads = base.num_attention_heads;
  if (heads != base_heads && !given("num-query-groups")) {
    model.num_query_groups = divisor_up_to(heads, heads * base.num_query_groups / base_heads);
  }
  const bool wider = model.hidden_size != base.hidden_size;
  if (!wider && heads == base_heads) return;
  // Heads that are no even parts of the hidden size keep their size or shrink with the model.
  auto shrink = [&](const char* flag, std::int64_t size, std::int64_t& follower) {
    if (!wider || given(flag)) return;
    std::int64_t part = size * model.hidden_size * base_heads / (heads * base.hidden_size);
    follower = std::min(size, std::max<std::int64_t>(round_up(part, 2), 2));
  };
  if (base.multi_latent_attention) {
    shrink("qk-head-dim", base.qk_head_dim, model.qk_head_dim);
    shrink("qk-pos-emb-head-dim", base.qk_pos_emb_head_dim, model.qk_pos_emb_head_dim);
    shrink("v-head-dim", base.v_head_dim, model.v_head_dim);
    auto rank = [&](const char* flag, std::int64_t size, std::int64_t& follower) {
      if (given(flag)) return;
      follower = std::min(size, scaled_width(size, base.hidden_size, model.hidden_size));
    };
    rank("q-lora-rank", base.q_lora_rank, model.q_lora_rank);
    rank("kv-lora-rank", base.kv_lora_rank, model.kv_lora_rank);
  } else if (base.kv_channels * base_heads != base.hidden_size) {
    shrink("kv-channels", base.kv_channels, model.kv_channels);
  } else if (!given("kv-channels")) {
    model.kv_channels = 0;  // hidden size / heads
  }
}

void follow_hidden_size(const ModelConfig& base, Given given, ModelConfig& model) {
  if (model.hidden_size == base.hidden_size) return;
  if (!given("ffn-hidden-size")) {
    model.ffn_hidden_size = scaled_width(base.ffn_hidden_size, base.hidden_size, model.hidden_size);
  }
  double root = std::sqrt(static_cast<double>(base.hidden_size));
  if (base.embedding_multiplier == root && !given("embedding-multiplier")) {
    model.embedding_multiplier = std::sqrt(static_cast<double>(model.hidden_size));
  }
}

void follow_experts(const ModelConfig& base, Given given, ModelConfig& model) {
  if (!base.moe.any() || !model.moe.any()) return;
  MoeConfig& moe = model.moe;
  if (!given("moe-ffn-hidden-size")) {
    moe.ffn_hidden_size =
        base.moe.ffn_hidden_size == base.ffn_hidden_size
            ? model.ffn_size()
            : scaled_width(base.moe.ffn_hidden_size, base.hidden_size, model.hidden_size);
  }
  if (base.moe.shared_expert_size > 0 && !given("moe-shared-expert-intermediate-size")) {
    moe.shared_expert_size =
        scaled_width(base.moe.shared_expert_size, base.moe.ffn_hidden_size, moe.ffn_hidden_size);
  }
  if (!given("moe-router-topk")) moe.topk = std::min(moe.topk, moe.num_experts);
  bool grouped = given("moe-router-num-groups") || given("moe-router-group-topk");
  if (moe.num_groups < 2 || grouped) return;
  std::int64_t size = moe.num_experts / moe.num_groups;
  bool fits = moe.num_experts % moe.num_groups == 0 && moe.group_score_experts <= size &&
              moe.topk <= moe.group_topk * size;
  if (!fits) moe.num_groups = moe.group_topk = moe.group_score_experts = 0;
}

void follow_layers(const ModelConfig& base, Given given, ModelConfig& model) {
  auto follow = [&](const char* flag, const Marks& marks, Marks& follower) {
    bool by_layer = static_cast<std::int64_t>(marks.size()) == base.num_layers && marks.size() > 1;
    if (by_layer && model.num_layers > 0 && !given(flag)) {
      follower = marks_for(marks, model.num_layers);
    }
  };
  if (model.num_layers != base.num_layers) {
    follow("window-attn-skip-freq", base.window_layers, model.window_layers);
    follow("dsa-indexer-shared-layers", base.indexer.shared_layers, model.indexer.shared_layers);
    follow("no-rope-freq", base.no_rope_layers, model.no_rope_layers);
    follow("moe-layer-freq", base.moe.layer_freq, model.moe.layer_freq);
  }
  if (model.window_size == 0 && !given("window-attn-skip-freq")) model.window_layers.clear();
}

// A pattern that is given has its own number of layers; else the base's goes on or is cut.
void follow_pattern(const ModelConfig& base, Given given, ModelConfig& model) {
  if (given("hybrid-layer-pattern")) {
    const std::int64_t layers = std::ranges::count_if(
        model.hybrid_layer_pattern, [](char kind) { return kind != '|' && kind != '/'; });
    if (!given("num-layers") && layers > 0) model.num_layers = layers;
    return;
  }
  if (base.hybrid_layer_pattern.empty() || model.num_layers == base.num_layers) return;
  const Marks marks(base.hybrid_layer_pattern.begin(), base.hybrid_layer_pattern.end());
  model.hybrid_layer_pattern.clear();
  for (std::int64_t mark : marks_for(marks, model.num_layers)) {
    model.hybrid_layer_pattern += static_cast<char>(mark);
  }
}

void follow_mamba(const ModelConfig& base, Given given, ModelConfig& model) {
  if (!base.has_mamba() || !model.has_mamba()) return;
  MambaConfig& mamba = model.mamba;
  const std::int64_t heads = base.mamba.heads(base.hidden_size);
  if (model.hidden_size != base.hidden_size && !given("mamba-num-heads")) {
    const std::int64_t width = heads * base.mamba.head_dim * model.hidden_size / base.hidden_size;
    mamba.num_heads = std::max<std::int64_t>(width / mamba.head_dim, 1);
  }
  if (!given("mamba-num-groups")) {
    mamba.num_groups = divisor_up_to(mamba.heads(model.hidden_size), base.mamba.num_groups);
  }
}

// Key heads, and with them value heads, in the proportion of the hidden size.
void follow_delta(const ModelConfig& base, Given given, ModelConfig& model) {
  if (!base.has_delta() || !model.has_delta()) return;
  const std::int64_t keys = base.delta.num_key_heads, values = base.delta.num_value_heads;
  const bool given_keys = given("linear-num-key-heads");
  if (model.hidden_size != base.hidden_size && !given_keys) {
    model.delta.num_key_heads =
        std::max<std::int64_t>(keys * model.hidden_size / base.hidden_size, 1);
  }
  if (!given("linear-num-value-heads")) {
    model.delta.num_value_heads = model.delta.num_key_heads * (values / keys);
  }
}

}  // namespace

void follow_sizes(const ModelConfig& base, Given given, ModelConfig& model) {
  follow_pattern(base, given, model);
  follow_layers(base, given, model);
  if (model.hidden_size < 1 || model.num_attention_heads < 1) return;
  follow_heads(base, given, model);
  follow_hidden_size(base, given, model);
  follow_experts(base, given, model);
  follow_mamba(base, given, model);
  follow_delta(base, given, model);
}

}  // namespace bev
