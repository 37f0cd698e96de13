// Chooses what each step computes. A step has a budget of tokens: sequences that run get theirs
// first (one token each, or the rest of a prompt in chunks), then waiting ones are admitted. A
// sequence that finds no block for its next token takes those of the one that would be served last,
// which waits again and is computed anew (preemption by recompute).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "infer/block_pool.h"
#include "infer/sequence.h"

namespace bev {

struct SchedulerOptions {
  std::int64_t max_step_tokens = 8192;
  std::int64_t max_sequences = 256;       // that run at a time
  std::int64_t max_waiting_requests = 0;  // 0: no bound
};

// Tokens [begin, begin + count) of a sequence.
struct ScheduledRun {
  Sequence* sequence = nullptr;
  std::int64_t begin = 0, count = 0;
  bool selects = false;  // the run ends at the sequence's last token: the next one is selected
  // Sequences of the same request that select a token from the same logits, and begin here.
  std::vector<Sequence*> forks = {};
};

// Copies that a step makes before it computes: of shared blocks that are about to be written (copy
// on write), and of the slots of sequences that were forked since the last step.
struct BlockCopy {
  BlockId from = 0, to = 0;
};
struct SlotCopy {
  std::int32_t from = 0, to = 0;
};

struct StepPlan {
  std::vector<ScheduledRun> runs;  // those of one token first
  std::vector<BlockCopy> block_copies;
  std::vector<SlotCopy> slot_copies;
  std::vector<RequestId> started;  // whose first sequence is admitted for the first time
  std::int64_t tokens = 0;
  std::int64_t preempted = 0;
  std::int64_t prefix_queries = 0, prefix_hits = 0;  // tokens looked up in the prefix cache, found
};

class Scheduler {
 public:
  // The pool must outlive the scheduler.
  Scheduler(BlockPool& pool, const SchedulerOptions& options);

  const SchedulerOptions& options() const { return options_; }
  // Throws Error(kInput) with both numbers if the request can never run.
  void check_fits(const Request& request) const;
  // Whether the queue has room.
  bool accepts() const;
  // The first sequence of a request begins to wait; the others begin with its last prompt token.
  void add(std::shared_ptr<ActiveRequest> request);
  // A sequence with the tokens of another. It shares the other's blocks if that one runs and a slot
  // is left; else it waits and is computed anew.
  Sequence& fork(const Sequence& from);

  StepPlan schedule();
  // A running sequence waits again and is computed anew.
  void restart(Sequence& sequence);
  // A sequence ends; what it holds is released. Its object lives until remove_finished().
  void finish(Sequence& sequence);
  void remove_finished();

  const std::vector<std::unique_ptr<Sequence>>& sequences() const { return sequences_; }
  std::int64_t waiting() const { return std::ssize(waiting_); }
  std::int64_t running() const { return std::ssize(running_); }
  bool idle() const { return waiting_.empty() && running_.empty(); }

 private:
  static bool served_before(const Sequence* a, const Sequence* b);
  // Blocks for the first `tokens` tokens, the written one its own; false if there are not enough.
  bool reserve(Sequence& sequence, std::int64_t tokens, StepPlan& plan);
  void add_run(Sequence& sequence, std::int64_t count, StepPlan& plan);
  void add_forks(ScheduledRun& run);
  void schedule_running(StepPlan& plan);
  void admit_waiting(StepPlan& plan);
  bool admit(Sequence& sequence, StepPlan& plan);
  std::int64_t slots_wanted(const Sequence& sequence) const;
  std::int64_t blocks_to_come(const Sequence& sequence) const;
  void release(Sequence& sequence);
  void run(Sequence& sequence);

  BlockPool& pool_;
  SchedulerOptions options_;
  std::int64_t arrivals_ = 0;
  std::vector<std::unique_ptr<Sequence>> sequences_;
  std::vector<Sequence*> waiting_, running_;  // in the order in which they are served
  std::vector<SlotCopy> forked_slots_;        // for the next step
};

}  // namespace bev
