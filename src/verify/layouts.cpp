#include "verify/layouts.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "base/error.h"
#include "base/text.h"
#include "parallel/pipeline/schedule.h"

namespace bev {

namespace {

constexpr std::int64_t kMostRanks = 64;

bool take_word(std::string_view& text, std::string_view word) {
  if (!text.starts_with(word)) return false;
  text.remove_prefix(word.size());
  return true;
}

// Parses a number from 1 to kMostRanks at the start of `text` and removes it.
bool take_size(std::string_view& text, std::int64_t& size) {
  std::int64_t number = -1;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 1 || number > kMostRanks) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  size = number;
  return true;
}

struct SizeToken {
  std::string_view word;
  std::int64_t ParallelConfig::*member;
};
// A word must precede the words that are its prefixes.
constexpr std::array kSizes = {
    SizeToken{"tp", &ParallelConfig::tensor_model_parallel_size},
    SizeToken{"pp", &ParallelConfig::pipeline_model_parallel_size},
    SizeToken{"vpp", &ParallelConfig::num_virtual_stages_per_pipeline_rank},
    SizeToken{"group", &ParallelConfig::microbatch_group_size},
    SizeToken{"dp", &ParallelConfig::data_parallel_size},
    SizeToken{"instances", &ParallelConfig::num_distributed_optimizer_instances},
    SizeToken{"cp", &ParallelConfig::context_parallel_size},
    SizeToken{"ep", &ParallelConfig::expert_model_parallel_size},
    SizeToken{"etp", &ParallelConfig::expert_tensor_parallel_size},
};

struct FlagToken {
  std::string_view word;
  bool ParallelConfig::*member;
};
constexpr std::array kFlags = {
    FlagToken{"tpoverlap", &ParallelConfig::tp_comm_overlap},
    FlagToken{"sp", &ParallelConfig::sequence_parallel},
    FlagToken{"dpouter", &ParallelConfig::use_tp_pp_dp_mapping},
    FlagToken{"gradoverlap", &ParallelConfig::overlap_grad_reduce},
    FlagToken{"paramoverlap", &ParallelConfig::overlap_param_gather},
};

constexpr std::array<std::string_view, 4> kStrategies = {"zero0", "zero1", "zero2", "zero3"};

bool take_strategy(std::string_view& text, ShardingStrategy& strategy) {
  for (std::size_t i = 0; i < kStrategies.size(); ++i) {
    if (!take_word(text, kStrategies[i])) continue;
    strategy = static_cast<ShardingStrategy>(i);
    return true;
  }
  return false;
}

// Takes the longest matching word, because a word may be a prefix of another.
bool take_schedule(std::string_view& text, PipelineSchedule& schedule) {
  std::string_view taken;
  for (const ScheduleTraits& traits : schedule_traits()) {
    std::string_view word = traits.layout_word;
    if (word.size() <= taken.size() || !text.starts_with(word)) continue;
    taken = word;
    schedule = traits.schedule;
  }
  return !taken.empty() && take_word(text, taken);
}

// Parses "a2a", "p2p", "allgather", or Ulysses and ring with their sizes: "a2a2p2p4".
bool take_exchange(std::string_view& text, ParallelConfig& layout) {
  for (const char* word : {"p2p", "allgather"}) {
    if (!take_word(text, word)) continue;
    layout.cp_comm_type = {word};
    return true;
  }
  if (!take_word(text, "a2a")) return false;
  layout.cp_comm_type = {"a2a"};
  std::int64_t inner = 0, outer = 0;
  if (!take_size(text, inner)) return true;
  if (!take_word(text, "p2p") || !take_size(text, outer)) return false;
  layout.cp_comm_type = {"a2a+p2p"};
  layout.hierarchical_context_parallel_sizes = {inner, outer};
  return true;
}

// Parses "Ett|tm|L]": the stages of --pipeline-model-parallel-layout.
bool take_stages(std::string_view& text, ParallelConfig& layout) {
  std::size_t end = text.find(']');
  if (end == text.npos) return false;
  layout.pipeline_model_parallel_layout = text.substr(0, end);
  text.remove_prefix(end + 1);
  return true;
}

// Moves one token from `text` into the layout; returns false if there is none.
bool take_token(std::string_view& text, ParallelConfig& layout) {
  for (const FlagToken& flag : kFlags) {
    if (take_word(text, flag.word)) return layout.*flag.member = true;
  }
  if (take_schedule(text, layout.pipeline_schedule)) return true;
  if (take_strategy(text, layout.data_parallel_sharding_strategy)) return true;
  if (take_word(text, "[")) return take_stages(text, layout);
  for (const SizeToken& size : kSizes) {
    if (take_word(text, size.word)) return take_size(text, layout.*size.member);
  }
  return take_exchange(text, layout);
}

// The base without any parallelism.
ParallelConfig blank(const ParallelConfig& base) {
  ParallelConfig plain, layout = base;
  layout.ranks = 0;
  for (const SizeToken& size : kSizes) layout.*size.member = plain.*size.member;
  for (const FlagToken& flag : kFlags) layout.*flag.member = false;
  layout.data_parallel_size = 1;
  layout.pipeline_schedule = plain.pipeline_schedule;
  layout.num_layers_per_virtual_pipeline_stage = 0;
  layout.decoder_first_pipeline_num_layers = layout.decoder_last_pipeline_num_layers = 0;
  layout.pipeline_model_parallel_layout.clear();
  layout.data_parallel_sharding_strategy = plain.data_parallel_sharding_strategy;
  layout.cp_comm_type = plain.cp_comm_type;
  layout.hierarchical_context_parallel_sizes.clear();
  return layout;
}

ParallelConfig parse_layout(std::string_view text, const ParallelConfig& base) {
  ParallelConfig layout = blank(base);
  std::string_view rest = text;
  while (!rest.empty()) {
    std::string_view at = rest;
    if (take_word(rest, ",")) continue;
    BEV_CHECK(
        take_token(rest, layout), ErrorKind::kConfig, "--layouts: ", text, ": cannot read \"", at,
        "\"; known are tpN, sp, tpoverlap, ppN, vppN, groupN, ", join(schedule_words(), ", "),
        ", [STAGES], dpN, zero1 to zero3, instancesN, gradoverlap, paramoverlap, cpN, p2p, a2a, "
        "allgather, a2aNp2pN, epN, etpN, dpouter; N from 1 to ",
        kMostRanks, ", STAGES as of --pipeline-model-parallel-layout");
  }
  return layout;
}

std::string exchange_text(const ParallelConfig& layout) {
  const std::vector<std::string>& types = layout.cp_comm_type;
  if (types.size() > 1) return "by layer";
  if (types.front() == "p2p") return "";
  const std::vector<std::int64_t>& sizes = layout.hierarchical_context_parallel_sizes;
  if (types.front() != "a2a+p2p" || sizes.size() != 2) return types.front();
  return concat("a2a", sizes[0], "p2p", sizes[1]);
}

}  // namespace

std::vector<std::string> schedule_words() {
  std::vector<std::string> words;
  for (const ScheduleTraits& traits : schedule_traits().subspan(1)) {
    words.emplace_back(traits.layout_word);
  }
  return words;
}

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
  auto sized = [](const char* word, std::int64_t size) {
    return size > 1 ? concat(word, size) : std::string();
  };
  auto add = [&](std::string part) {
    if (!part.empty()) parts.push_back(std::move(part));
  };
  auto flag = [](bool set, const char* word) { return set ? word : ""; };
  // Defaults are omitted.
  auto schedule = layout.pipeline_schedule == PipelineSchedule{}
                      ? std::string_view()
                      : traits_of(layout.pipeline_schedule).layout_word;
  auto sharding = static_cast<std::size_t>(layout.data_parallel_sharding_strategy);
  add(concat(sized("tp", layout.tensor_model_parallel_size), flag(layout.sequence_parallel, "sp"),
             flag(layout.tp_comm_overlap, "tpoverlap")));
  std::string cp = sized("cp", layout.context_parallel_size);
  add(cp.empty() ? cp : cp + exchange_text(layout));
  const std::string& stages = layout.pipeline_model_parallel_layout;
  add(concat(sized("pp", layout.pipeline_model_parallel_size),
             sized("vpp", layout.num_virtual_stages_per_pipeline_rank),
             sized("group", layout.microbatch_group_size), schedule,
             stages.empty() ? "" : concat("[", stages, "]")));
  add(concat(sized("dp", layout.data_parallel_size),
             sharding > 0 ? kStrategies[sharding] : std::string_view(),
             sized("instances", layout.num_distributed_optimizer_instances),
             flag(layout.overlap_grad_reduce, "gradoverlap"),
             flag(layout.overlap_param_gather, "paramoverlap")));
  // etp equal to tp is the default and is omitted.
  std::int64_t etp = layout.expert_tensor_parallel_size;
  bool own = etp > 0 && etp != layout.tensor_model_parallel_size;
  add(concat(sized("ep", layout.expert_model_parallel_size), own ? concat("etp", etp) : ""));
  add(flag(layout.use_tp_pp_dp_mapping, "dpouter"));
  return parts.empty() ? "1 rank" : join(parts, ",");
}

namespace {

std::vector<std::int64_t> divisors(std::int64_t n) {
  std::vector<std::int64_t> out;
  for (std::int64_t i = 1; i <= n; ++i) {
    if (n % i == 0) out.push_back(i);
  }
  return out;
}

using Layouts = std::vector<ParallelConfig>;

// The variants of each layout.
template <class Vary>
Layouts with_each(const Layouts& layouts, const Vary& vary) {
  Layouts out;
  for (const ParallelConfig& layout : layouts) {
    vary(layout, [&](ParallelConfig varied) { out.push_back(std::move(varied)); });
  }
  return out;
}

void vary_schedule(ParallelConfig layout, const auto& add) {
  if (layout.pipeline_model_parallel_size == 1) return add(layout);
  for (const ScheduleTraits& traits : schedule_traits()) {
    layout.pipeline_schedule = traits.schedule;
    add(layout);
  }
  layout.num_virtual_stages_per_pipeline_rank = 2;
  for (const ScheduleTraits& traits : schedule_traits()) {
    if (traits.chunks > 0) continue;
    layout.pipeline_schedule = traits.schedule;
    add(layout);
  }
}

void vary_exchange(ParallelConfig layout, const auto& add) {
  add(layout);
  std::int64_t cp = layout.context_parallel_size;
  if (cp == 1) return;
  for (const char* type : {"a2a", "allgather"}) {
    layout.cp_comm_type = {type};
    add(layout);
  }
  layout.cp_comm_type = {"a2a+p2p"};
  for (std::int64_t inner : divisors(cp)) {
    if (inner == 1 || inner == cp) continue;
    layout.hierarchical_context_parallel_sizes = {inner, cp / inner};
    add(layout);
  }
}

void vary_sharding(ParallelConfig layout, const auto& add) {
  bool copies = layout.data_parallel_size * layout.context_parallel_size > 1;
  for (int stage = 0; stage <= (copies ? 3 : 0); ++stage) {
    layout.data_parallel_sharding_strategy = static_cast<ShardingStrategy>(stage);
    add(layout);
  }
}

}  // namespace

std::vector<ParallelConfig> with_experts(const std::vector<ParallelConfig>& layouts) {
  return with_each(layouts, [](ParallelConfig layout, const auto& add) {
    add(layout);
    std::int64_t tp = layout.tensor_model_parallel_size;
    std::int64_t stage = tp * layout.context_parallel_size * layout.data_parallel_size;
    // etp is either tp or 1.
    for (std::int64_t etp : tp == 1 ? std::vector{tp} : std::vector{tp, std::int64_t{1}}) {
      for (std::int64_t ep : divisors(stage / etp)) {
        if (ep == 1 && etp == tp) continue;
        layout.expert_model_parallel_size = ep;
        layout.expert_tensor_parallel_size = etp;
        add(layout);
      }
    }
  });
}

std::vector<ParallelConfig> all_layouts(std::int64_t ranks, const ParallelConfig& base) {
  Layouts layouts;
  for (std::int64_t tp : divisors(ranks)) {
    for (std::int64_t cp : divisors(ranks / tp)) {
      for (std::int64_t pp : divisors(ranks / tp / cp)) {
        ParallelConfig layout = blank(base);
        layout.tensor_model_parallel_size = tp;
        layout.context_parallel_size = cp;
        layout.pipeline_model_parallel_size = pp;
        layout.data_parallel_size = ranks / tp / cp / pp;
        layouts.push_back(layout);
        layout.sequence_parallel = tp > 1;
        if (tp > 1) layouts.push_back(layout);
      }
    }
  }
  layouts =
      with_each(layouts, [](const auto& layout, const auto& add) { vary_schedule(layout, add); });
  layouts =
      with_each(layouts, [](const auto& layout, const auto& add) { vary_exchange(layout, add); });
  return with_each(layouts,
                   [](const auto& layout, const auto& add) { vary_sharding(layout, add); });
}

}  // namespace bev
