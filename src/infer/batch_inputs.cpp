#include "infer/batch_inputs.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/divide.h"
#include "base/error.h"
#include "kernels/device.h"

namespace bev {

namespace {

// Sections begin at multiples of 64 bytes.
constexpr std::int64_t kWordBytes = 4, kSectionWords = 16;

template <class T>
constexpr std::int64_t kWordsOf = static_cast<std::int64_t>(sizeof(T)) / kWordBytes;

struct Section {
  std::int64_t begin = 0, words = 0;
};

// Where each part of the inputs lies in the buffer, in words.
struct Sections {
  Section tokens, token_slots, positions, samples, write_rows, table, runs, rules, slots, edits;
  std::int64_t words = 0;

  explicit Sections(const BatchShape& shape) {
    auto take = [this](std::int64_t count) {
      Section section{words, count};
      words += round_up(count, kSectionWords);
      return section;
    };
    tokens = take(shape.tokens);
    token_slots = take(shape.tokens);
    positions = take(shape.tokens);
    samples = take(shape.tokens);
    write_rows = take(shape.tokens);
    table = take(shape.runs * shape.table_stride);
    runs = take(shape.runs * kWordsOf<AttentionRun>);
    rules = take(shape.selects * kWordsOf<SamplingRule>);
    slots = take(shape.selects);
    edits = take(shape.edits * kWordsOf<LogitEdit>);
  }
};

constexpr float kNever = -std::numeric_limits<float>::infinity();

// Forbids tokens that would complete an n-gram for the second time.
void add_repeats(const Sequence& sequence, std::vector<LogitEdit>& edits) {
  const auto size = static_cast<std::size_t>(sequence.asked().rules.no_repeat_ngram_size);
  const std::vector<std::int32_t>& tokens = sequence.tokens;
  if (size == 0 || tokens.size() + 1 < size) return;
  const auto end = tokens.end() - static_cast<std::ptrdiff_t>(size - 1);
  for (auto at = tokens.begin(); at + static_cast<std::ptrdiff_t>(size - 1) != tokens.end(); ++at) {
    if (std::equal(end, tokens.end(), at))
      edits.push_back({at[static_cast<std::ptrdiff_t>(size) - 1], kNever});
  }
}

void add_edits(const Sequence& sequence, SamplingRule& rule, std::vector<LogitEdit>& edits) {
  const Request& asked = sequence.asked();
  rule.edits_begin = static_cast<std::int32_t>(edits.size());
  rule.only_edited = !asked.sampling.allowed_tokens.empty();
  for (std::int32_t token : asked.sampling.allowed_tokens) edits.push_back({token, 0});
  edits.insert(edits.end(), asked.sampling.logit_bias.begin(), asked.sampling.logit_bias.end());
  // The token to select is counted in flight already.
  if (sequence.output_tokens() - 1 < asked.min_new_tokens) {
    if (!asked.ignore_end) {
      for (std::int32_t token : asked.end_tokens) edits.push_back({token, kNever});
    }
    for (std::int32_t token : asked.stop_tokens) edits.push_back({token, kNever});
  }
  add_repeats(sequence, edits);
  for (std::int32_t token : banned_after(sequence.tokens, asked.rules)) {
    edits.push_back({token, kNever});
  }
  rule.edits_end = static_cast<std::int32_t>(edits.size());
  const std::int64_t before = sequence.length() - 1;
  if (before == 1) rule.forced = asked.rules.forced_bos_token;
  if (sequence.output_tokens() == asked.max_new_tokens && asked.rules.forced_eos_token >= 0) {
    rule.forced = asked.rules.forced_eos_token;
  }
}

}  // namespace

void BatchValues::add_tokens(const ScheduledRun& run, std::int64_t block_tokens,
                             bool dynamic_rope) {
  const Sequence& sequence = *run.sequence;
  const std::int64_t end = run.begin + run.count;
  const std::int64_t first_row = std::ssize(tokens);
  runs.push_back({.q_begin = static_cast<std::int32_t>(first_row),
                  .q_count = static_cast<std::int32_t>(run.count),
                  .k_begin = 0,
                  .k_count = static_cast<std::int32_t>(end),
                  .offset = static_cast<std::int32_t>(run.begin)});
  run_slots.push_back(sequence.slot);
  if (!dynamic_rope) {
    sequences.push_back({first_row, first_row + run.count, std::ssize(sequence.tokens)});
  }
  for (std::int64_t at = run.begin; at < end; ++at) {
    const std::int64_t row = std::ssize(tokens);
    if (dynamic_rope) sequences.push_back({row, row + 1, std::max(sequence.prompt_tokens, at + 1)});
    const bool known = at < std::ssize(sequence.tokens);
    tokens.push_back(known ? sequence.tokens[static_cast<std::size_t>(at)] : 0);
    token_slots.push_back(known ? -1 : sequence.slot);
    positions.push_back(static_cast<std::int32_t>(at));
    samples.push_back(static_cast<std::int32_t>(sequence.asked().stream));
    const BlockId block = sequence.blocks[static_cast<std::size_t>(at / block_tokens)];
    write_rows.push_back(static_cast<std::int32_t>(block * block_tokens + at % block_tokens));
  }
  table.insert(table.end(), sequence.blocks.begin(), sequence.blocks.end());
  table.resize(runs.size() * static_cast<std::size_t>(shape.table_stride), kNullBlock);
}

void BatchValues::choose_adapters(const StepPlan& plan, std::size_t adapters) {
  adapter_rows.of.assign(adapters, {});
  for (std::size_t i = 0; i < plan.runs.size(); ++i) {
    const std::int64_t number = plan.runs[i].sequence->asked().cache_key.adapter;
    if (number < 0) continue;
    std::vector<Range>& rows = adapter_rows.of.at(static_cast<std::size_t>(number));
    const Range own{runs[i].q_begin, runs[i].q_begin + runs[i].q_count};
    if (!rows.empty() && rows.back().end == own.begin) {
      rows.back().end = own.end;
    } else {
      rows.push_back(own);
    }
  }
}

void BatchValues::add_selections(const ScheduledRun& run) {
  std::vector<Sequence*> all = {run.sequence};
  all.insert(all.end(), run.forks.begin(), run.forks.end());
  for (Sequence* sequence : all) {
    const Request& asked = sequence->asked();
    selecting.push_back(sequence);
    last_rows.push_back(std::ssize(tokens) - 1);
    slots.push_back(sequence->slot);
    SamplingRule rule = sampling_rule(
        asked.sampling, {asked.stream + (sequence->result.index << 32), sequence->length() - 1});
    if (asked.sampling.penalises()) rule.counts_row = sequence->slot;
    shape.penalises = shape.penalises || rule.counts_row >= 0;
    add_edits(*sequence, rule, edits);
    shape.all_greedy = shape.all_greedy && rule.greedy() && !rule.edits_logits() && rule.forced < 0;
    rules.push_back(rule);
  }
}

BatchValues::BatchValues(const StepPlan& plan, std::int64_t block_tokens, bool dynamic_rope) {
  for (const ScheduledRun& run : plan.runs) {
    shape.table_stride = std::max(shape.table_stride, std::ssize(run.sequence->blocks));
  }
  for (const ScheduledRun& run : plan.runs) {
    add_tokens(run, block_tokens, dynamic_rope);
    if (run.selects) add_selections(run);
  }
  shape.tokens = std::ssize(tokens);
  shape.runs = std::ssize(runs);
  shape.selects = std::ssize(rules);
  shape.edits = std::ssize(edits);
}

void BatchValues::pad(const BatchShape& to, std::int64_t block_tokens) {
  std::vector<std::int32_t> wider;
  for (std::size_t run = 0; run < runs.size(); ++run) {
    auto row = table.begin() + static_cast<std::ptrdiff_t>(run) * shape.table_stride;
    wider.insert(wider.end(), row, row + shape.table_stride);
    wider.resize((run + 1) * static_cast<std::size_t>(to.table_stride), kNullBlock);
  }
  table = std::move(wider);
  table.resize(static_cast<std::size_t>(to.runs * to.table_stride), kNullBlock);
  while (std::ssize(runs) < to.runs) {
    auto row = static_cast<std::int32_t>(tokens.size());
    runs.push_back({.q_begin = row, .q_count = 1, .k_begin = 0, .k_count = 1});
    sequences.push_back({row, row + 1, 1});
    run_slots.push_back(-1);
    tokens.push_back(0);
    token_slots.push_back(-1);
    positions.push_back(0);
    samples.push_back(0);
    write_rows.push_back(static_cast<std::int32_t>(row % block_tokens));
    last_rows.push_back(row);
    rules.emplace_back();
    slots.push_back(-1);
  }
  edits.resize(static_cast<std::size_t>(to.edits));
  bool greedy = shape.all_greedy;
  shape = to;
  BEV_CHECK(greedy || !to.all_greedy, ErrorKind::kInternal, "step: padded to a greedy shape");
}

BatchInputs::BatchInputs(Context& ctx, const BatchShape& shape) {
  const Sections at(shape);
  words = Tensor(ctx.inputs, Dtype::kI32, {at.words}, "batch");
  auto part = [&](const Section& section) {
    return words.rows(section.begin, section.begin + section.words);
  };
  tokens = part(at.tokens), token_slots = part(at.token_slots), positions = part(at.positions);
  samples = part(at.samples), write_rows = part(at.write_rows), table = part(at.table);
  runs = part(at.runs);
  const std::int32_t* begin = words.as<std::int32_t>();
  rules = reinterpret_cast<const SamplingRule*>(begin + at.rules.begin);
  slots = begin + at.slots.begin;
  edits = reinterpret_cast<const LogitEdit*>(begin + at.edits.begin);
}

void BatchInputs::upload(Context& ctx, const BatchValues& values) const {
  const Sections at(values.shape);
  BEV_CHECK(at.words == words.numel(), ErrorKind::kInternal, "step: values of another shape");
  std::vector<std::int32_t> packed(static_cast<std::size_t>(at.words));
  auto put = [&]<class T>(const Section& section, const std::vector<T>& from) {
    BEV_CHECK(section.words == std::ssize(from) * kWordsOf<T>, ErrorKind::kInternal,
              "step: a section of ", section.words, " words for ", from.size(), " values");
    if (!from.empty()) {
      std::memcpy(packed.data() + section.begin, from.data(), from.size() * sizeof(T));
    }
  };
  put(at.tokens, values.tokens), put(at.token_slots, values.token_slots);
  put(at.positions, values.positions), put(at.samples, values.samples);
  put(at.write_rows, values.write_rows), put(at.table, values.table);
  put(at.runs, values.runs), put(at.rules, values.rules);
  put(at.slots, values.slots), put(at.edits, values.edits);
  ctx.kernels.device.upload(ctx.stream, packed.data(), words);
}

}  // namespace bev
