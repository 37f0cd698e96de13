#include "app/layouts.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "base/error.h"

namespace bev {

namespace {

constexpr std::int64_t kMostRanks = 64;

// A number in front of `text`, which is shortened by it; -1 when there is none.
std::int64_t take_number(std::string_view& text) {
  std::int64_t number = -1;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return -1;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

bool take_word(std::string_view& text, std::string_view word) {
  if (!text.starts_with(word)) return false;
  text.remove_prefix(word.size());
  return true;
}

// Takes one token off `text` into the layout; false when it is none.
bool take_token(std::string_view& text, ParallelConfig& layout) {
  auto size = [&](std::int64_t& member) {
    std::int64_t number = take_number(text);
    if (number >= 1 && number <= kMostRanks) member = number;
    return number >= 1 && number <= kMostRanks;
  };
  if (take_word(text, "tp")) return size(layout.tensor_model_parallel_size);
  if (take_word(text, "pp")) return size(layout.pipeline_model_parallel_size);
  if (take_word(text, "dp")) return size(layout.data_parallel_size);
  if (take_word(text, "sp")) return layout.sequence_parallel = true;
  if (take_word(text, "zero")) {
    std::int64_t stage = take_number(text);
    if (stage < 0 || stage > 3) return false;
    layout.data_parallel_sharding_strategy = static_cast<ShardingStrategy>(stage);
    return true;
  }
  return false;
}

ParallelConfig blank(const ParallelConfig& base) {
  ParallelConfig layout = base;
  layout.ranks = 0;
  layout.tensor_model_parallel_size = layout.pipeline_model_parallel_size = 1;
  layout.data_parallel_size = 1;
  layout.sequence_parallel = false;
  layout.data_parallel_sharding_strategy = ShardingStrategy::kNoShard;
  return layout;
}

ParallelConfig parse_layout(std::string_view text, const ParallelConfig& base) {
  ParallelConfig layout = blank(base);
  std::string_view rest = text;
  while (!rest.empty()) {
    std::string_view at = rest;
    if (take_word(rest, ",")) continue;
    BEV_CHECK(take_token(rest, layout), ErrorKind::kConfig, "--layouts: ", text, ": cannot read \"",
              at, "\"; known are tpN, ppN, dpN (N from 1 to ", kMostRanks,
              "), sp, zero1, zero2, zero3");
  }
  return layout;
}

}  // namespace

std::vector<ParallelConfig> parse_layouts(std::string_view text, const ParallelConfig& base) {
  std::vector<ParallelConfig> layouts;
  for (const std::string& word : split(text, ' ')) {
    if (!word.empty()) layouts.push_back(parse_layout(word, base));
  }
  BEV_CHECK(!layouts.empty(), ErrorKind::kConfig,
            "--layouts: names no layout; try \"tp2sp pp2 dp2zero3\"");
  return layouts;
}

std::string layout_text(const ParallelConfig& layout) {
  std::vector<std::string> parts;
  if (layout.tensor_model_parallel_size > 1) {
    parts.push_back(
        concat("tp", layout.tensor_model_parallel_size, layout.sequence_parallel ? "sp" : ""));
  }
  if (layout.pipeline_model_parallel_size > 1) {
    parts.push_back(concat("pp", layout.pipeline_model_parallel_size));
  }
  if (layout.data_parallel_size > 1) {
    auto stage = static_cast<int>(layout.data_parallel_sharding_strategy);
    parts.push_back(
        concat("dp", layout.data_parallel_size, stage > 0 ? concat("zero", stage) : ""));
  }
  return parts.empty() ? "1 rank" : join(parts, ",");
}

std::vector<ParallelConfig> all_layouts(std::int64_t ranks, const ModelConfig& model,
                                        const ParallelConfig& base) {
  std::vector<ParallelConfig> layouts;
  for (std::int64_t tp = 1; tp <= ranks; ++tp) {
    bool fits = ranks % tp == 0 && model.num_attention_heads % tp == 0 &&
                model.kv_heads() % tp == 0 && model.ffn_size() % tp == 0;
    if (!fits) continue;
    for (std::int64_t pp = 1; pp <= std::min(ranks / tp, model.num_layers); ++pp) {
      if (ranks / tp % pp != 0) continue;
      std::int64_t dp = ranks / tp / pp;
      for (bool sequence_parallel : {false, true}) {
        if (sequence_parallel && tp == 1) continue;
        for (int stage = 0; stage <= (dp > 1 ? 3 : 0); ++stage) {
          ParallelConfig layout = blank(base);
          layout.tensor_model_parallel_size = tp;
          layout.pipeline_model_parallel_size = pp;
          layout.data_parallel_size = dp;
          layout.sequence_parallel = sequence_parallel;
          layout.data_parallel_sharding_strategy = static_cast<ShardingStrategy>(stage);
          layouts.push_back(layout);
        }
      }
    }
  }
  return layouts;
}

}  // namespace bev
