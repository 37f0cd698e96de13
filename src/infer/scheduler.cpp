#include "infer/scheduler.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/error.h"

namespace bev {

namespace {

void insert_in_order(std::vector<Sequence*>& list, Sequence* sequence, auto before) {
  list.insert(std::upper_bound(list.begin(), list.end(), sequence, before), sequence);
}

}  // namespace

Scheduler::Scheduler(BlockPool& pool, const SchedulerOptions& options)
    : pool_(pool), options_(options) {
  options_.max_sequences = std::min(options.max_sequences, pool.options().slots);
}

bool Scheduler::served_before(const Sequence* a, const Sequence* b) {
  auto order = [](const Sequence* at) {
    return std::tuple(at->asked().priority, at->request->arrival, at->result.index);
  };
  return order(a) < order(b);
}

void Scheduler::check_fits(const Request& request) const {
  // The last token is never run.
  auto prompt = std::ssize(request.prompt);
  std::int64_t tokens = prompt + std::max<std::int64_t>(request.max_new_tokens - 1, 0);
  std::int64_t most = pool_.options().blocks * pool_.options().block_tokens;
  BEV_CHECK(pool_.blocks_for(tokens) <= pool_.options().blocks, ErrorKind::kInput,
            "the request needs a KV cache of ", tokens, " tokens (a prompt of ", prompt, " and ",
            request.max_new_tokens, " new ones), and the cache has ", most,
            "; lower max_new_tokens, or raise --kv-cache-tokens");
  // Beams go on together, so that all of them must fit at a time, with a block to copy for each.
  std::int64_t beams = request.beams ? request.width() : 0;
  BEV_CHECK(beams * (pool_.blocks_for(tokens) + 1) <= pool_.options().blocks, ErrorKind::kInput,
            "--num-beams: ", beams, " beams of ", tokens, " tokens need a KV cache of ",
            beams * (pool_.blocks_for(tokens) + 1) * pool_.options().block_tokens,
            " tokens, and the cache has ", most,
            "; lower max_new_tokens, or raise --kv-cache-tokens");
  BEV_CHECK(request.width() <= options_.max_sequences, ErrorKind::kInput, "n: ", request.width(),
            " sequences, and at most ", options_.max_sequences, " run at a time (--max-seqs)");
}

bool Scheduler::accepts() const {
  return options_.max_waiting_requests == 0 || waiting() < options_.max_waiting_requests;
}

void Scheduler::add(std::shared_ptr<ActiveRequest> request) {
  request->arrival = arrivals_++;
  auto& sequence = sequences_.emplace_back(std::make_unique<Sequence>());
  sequence->tokens = request->asked.prompt;
  sequence->prompt_tokens = std::ssize(sequence->tokens);
  sequence->request = std::move(request);
  insert_in_order(waiting_, sequence.get(), served_before);
}

Sequence& Scheduler::fork(const Sequence& from) {
  auto& sequence = sequences_.emplace_back(std::make_unique<Sequence>());
  sequence->request = from.request;
  sequence->tokens = from.tokens;
  sequence->prompt_tokens = from.prompt_tokens;
  sequence->in_flight = from.in_flight;
  if (from.state != SequenceState::kRunning || pool_.free_slots() == 0) {
    insert_in_order(waiting_, sequence.get(), served_before);
    return *sequence;
  }
  sequence->computed = from.computed;
  sequence->blocks = from.blocks;
  sequence->known_blocks = from.known_blocks;
  for (BlockId block : sequence->blocks) pool_.add_reference(block);
  run(*sequence);
  forked_slots_.push_back({from.slot, sequence->slot});
  return *sequence;
}

void Scheduler::run(Sequence& sequence) {
  sequence.slot = pool_.take_slot();
  sequence.counts_are_set = false;
  sequence.state = SequenceState::kRunning;
  insert_in_order(running_, &sequence, served_before);
}

// A block that others hold too must not be written: the sequence gets a copy. Only the block in
// which the sequence ends can be such a one.
bool Scheduler::reserve(Sequence& sequence, std::int64_t tokens, StepPlan& plan) {
  std::int64_t width = pool_.options().block_tokens;
  auto partial = static_cast<std::size_t>(sequence.computed / width);
  bool shared = sequence.computed % width != 0 && partial < sequence.blocks.size() &&
                pool_.references(sequence.blocks[partial]) > 1;
  std::int64_t missing = pool_.blocks_for(tokens) - std::ssize(sequence.blocks) + (shared ? 1 : 0);
  if (missing > pool_.available()) return false;
  if (shared) {
    BlockId own = pool_.allocate();
    plan.block_copies.push_back({sequence.blocks[partial], own});
    pool_.release(sequence.blocks[partial]);
    sequence.blocks[partial] = own;
  }
  while (std::ssize(sequence.blocks) < pool_.blocks_for(tokens)) {
    sequence.blocks.push_back(pool_.allocate());
  }
  return true;
}

void Scheduler::release(Sequence& sequence) {
  pool_.release_all(sequence.blocks);
  sequence.blocks.clear();
  sequence.known_blocks = 0;
  if (sequence.slot >= 0) pool_.release_slot(std::exchange(sequence.slot, -1));
}

void Scheduler::restart(Sequence& sequence) {
  if (sequence.state != SequenceState::kRunning) return;
  std::erase(running_, &sequence);
  release(sequence);
  sequence.computed = 0;
  sequence.state = SequenceState::kWaiting;
  insert_in_order(waiting_, &sequence, served_before);
}

std::int64_t Scheduler::slots_wanted(const Sequence& sequence) const {
  bool begins = sequence.result.index == 0 && sequence.output_tokens() == 0;
  return begins ? sequence.asked().width() : 1;
}

// The forks take no slot before the prompt is computed, but it is kept for them by admit().
void Scheduler::add_forks(ScheduledRun& run) {
  Sequence& first = *run.sequence;
  if (first.result.index != 0 || first.output_tokens() > 0) return;
  for (std::int64_t index = 1; index < first.asked().n; ++index) {
    Sequence& copy = fork(first);
    copy.result.index = index;
    run.forks.push_back(&copy);
  }
  std::ranges::sort(running_, served_before);
}

void Scheduler::add_run(Sequence& sequence, std::int64_t count, StepPlan& plan) {
  ScheduledRun run{&sequence, sequence.computed, count};
  run.selects = sequence.computed + count == sequence.length();
  sequence.computed += count;
  plan.tokens += count;
  std::int64_t width = pool_.options().block_tokens;
  std::int64_t full =
      std::min<std::int64_t>(sequence.computed, std::ssize(sequence.tokens)) / width;
  pool_.remember(sequence.blocks, sequence.tokens, sequence.asked().cache_key,
                 sequence.known_blocks, full);
  sequence.known_blocks = full;
  if (run.selects) {
    add_forks(run);
    ++sequence.in_flight;
    for (Sequence* fork : run.forks) ++fork->in_flight;
  }
  plan.runs.push_back(std::move(run));
}

void Scheduler::schedule_running(StepPlan& plan) {
  // Preemption removes sequences from the end of running_, forks are added to it.
  const std::vector<Sequence*> order = running_;
  for (Sequence* sequence : order) {
    bool ends = sequence->at_end() && sequence->computed >= sequence->prompt_tokens;
    if (sequence->state != SequenceState::kRunning || ends) continue;
    std::int64_t budget = options_.max_step_tokens - plan.tokens;
    std::int64_t count = std::min(sequence->length() - sequence->computed, budget);
    if (count <= 0) continue;
    while (!reserve(*sequence, sequence->computed + count, plan)) {
      Sequence* last = running_.back();
      restart(*last);
      ++plan.preempted;
      if (last == sequence) break;
    }
    if (sequence->state == SequenceState::kRunning) add_run(*sequence, count, plan);
  }
}

// Blocks that a sequence will still ask for.
std::int64_t Scheduler::blocks_to_come(const Sequence& sequence) const {
  const Request& asked = sequence.asked();
  std::int64_t most = sequence.prompt_tokens + asked.max_new_tokens - 1;
  return std::max<std::int64_t>(pool_.blocks_for(most) - std::ssize(sequence.blocks), 0);
}

// The whole sequence must fit, and the next block of each that runs: what is admitted now is not to
// be preempted at once.
bool Scheduler::admit(Sequence& sequence, StepPlan& plan) {
  std::int64_t held = 0;  // slots of forks to come
  for (const Sequence* at : running_) held += slots_wanted(*at) - 1;
  std::int64_t slots = slots_wanted(sequence);
  bool has_slots = running() + held + slots <= options_.max_sequences;
  if (!has_slots || pool_.free_slots() < held + slots) return false;
  // The last token is always computed: its logits are needed.
  std::int64_t most_known = (sequence.length() - 1) / pool_.options().block_tokens;
  bool reads_cache = !sequence.asked().prompt_logprobs;
  std::vector<BlockId> known =
      pool_.find_prefix(sequence.tokens, sequence.asked().cache_key, reads_cache ? most_known : 0);
  std::int64_t missing = pool_.blocks_for(sequence.length()) - std::ssize(known);
  std::int64_t spare = 0;
  for (const Sequence* at : running_) spare += std::min<std::int64_t>(blocks_to_come(*at), 1);
  if (missing + spare > pool_.available()) {
    pool_.release_all(known);
    return false;
  }
  std::erase(waiting_, &sequence);
  if (!std::exchange(sequence.request->started, true)) plan.started.push_back(sequence.request->id);
  if (pool_.options().prefix_cache && reads_cache) plan.prefix_queries += sequence.length();
  plan.prefix_hits += std::ssize(known) * pool_.options().block_tokens;
  sequence.known_blocks = std::ssize(known);
  sequence.computed = sequence.known_blocks * pool_.options().block_tokens;
  sequence.blocks = std::move(known);
  if (sequence.output_tokens() == 0) {
    sequence.request->result.cached_tokens = sequence.computed;
  }
  run(sequence);
  std::int64_t count =
      std::min(sequence.length() - sequence.computed, options_.max_step_tokens - plan.tokens);
  bool reserved = reserve(sequence, sequence.computed + count, plan);
  BEV_CHECK(reserved, ErrorKind::kInternal, "scheduler: admitted without blocks");
  add_run(sequence, count, plan);
  return true;
}

void Scheduler::admit_waiting(StepPlan& plan) {
  const std::vector<Sequence*> order = waiting_;
  for (Sequence* sequence : order) {
    if (plan.tokens >= options_.max_step_tokens) return;
    // A token that is still in flight is not known here, and comes with the next results.
    if (sequence->in_flight > 0 || !admit(*sequence, plan)) return;
  }
}

StepPlan Scheduler::schedule() {
  StepPlan plan;
  plan.slot_copies = std::exchange(forked_slots_, {});
  schedule_running(plan);
  if (plan.preempted == 0) admit_waiting(plan);
  std::ranges::stable_partition(plan.runs, [](const ScheduledRun& run) { return run.count == 1; });
  return plan;
}

void Scheduler::finish(Sequence& sequence) {
  if (sequence.state == SequenceState::kFinished) return;
  std::erase(waiting_, &sequence);
  std::erase(running_, &sequence);
  release(sequence);
  sequence.state = SequenceState::kFinished;
}

void Scheduler::remove_finished() {
  std::erase_if(sequences_, [](const auto& at) {
    return at->state == SequenceState::kFinished && at->in_flight == 0;
  });
}

}  // namespace bev
