#include "infer/engine.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"
#include "kernels/device.h"
#include "models/rope.h"
#include "tokenizer/tokenizer.h"

namespace bev {

std::string_view name_of(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return "none";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kDeadline:
      return "deadline";
    case FinishReason::kError:
      return "error";
  }
  return "none";
}

namespace {

// A rank's memory that stays free on a GPU: for CUDA graphs, library workspaces and fragmentation.
constexpr std::int64_t kReserveBytes = std::int64_t{1} << 30;
// Bytes of the pools in host memory, where nobody says how large they should be.
constexpr std::int64_t kPlainPoolBytes = std::int64_t{4} << 30;

void check_layout(RankModel& model) {
  const ParallelConfig& parallel = model.options().parallel;
  bool plain = parallel.context_parallel_size == 1 && !parallel.sequence_parallel &&
               model.pipeline().shape.chunks == 1;
  BEV_CHECK(plain, ErrorKind::kConfig,
            "generate: tokens cannot be cut over ranks, nor a rank have several stages "
            "(inference_layout gives a layout that fits)");
}

// Moves a part of a list to its place.
template <class T>
void put_at(std::size_t begin, std::vector<T>& part, std::vector<T>& all) {
  if (part.empty()) return;
  all.resize(std::max(all.size(), begin + part.size()));
  std::ranges::move(part, all.begin() + static_cast<std::ptrdiff_t>(begin));
}

std::string in_bytes(std::int64_t bytes) { return format_bytes(static_cast<double>(bytes)); }

}  // namespace

InferenceEngine::InferenceEngine(RankModel& model, const InferenceOptions& options)
    : model_(model), options_(options) {
  check_layout(model);
  BEV_CHECK(model.options().model.causal, ErrorKind::kConfig,
            "generate: the model is bidirectional; a decoder is needed");
  // A recurrent state serves one sequence, and keys of other frequencies no other.
  if (ModelRunner::has_slot_states(model) || rope_depends_on_length(model.options().model)) {
    options_.prefix_cache = false;
  }
  // Whatever else computes with the model does so without them.
  if (options_.chosen_adapters) model.ctx().adapters = false;
  warm_up();
  plan_pools();
}

InferenceEngine::~InferenceEngine() = default;

// A step of the largest size, so that the memory of activations is there before the pools take the
// rest.
void InferenceEngine::warm_up() {
  if (!model_.rank().runs_ahead()) return;
  RunnerOptions small{.blocks = 1,
                      .block_tokens = options_.block_tokens,
                      .slots = options_.max_sequences,
                      .token_counts = options_.token_counts,
                      .chosen_adapters = options_.chosen_adapters};
  ModelRunner(model_, small).warm_up(options_.max_step_tokens, options_.max_sequences);
}

// The most blocks that every rank has memory for, at most `wanted`; all ranks agree.
std::int64_t InferenceEngine::affordable_blocks(std::int64_t wanted) {
  std::int64_t slot_bytes =
      ModelRunner::bytes_per_slot(model_, options_.token_counts) * options_.max_sequences;
  std::int64_t block_bytes = ModelRunner::bytes_per_block(model_, options_.block_tokens);
  std::int64_t free = model_.ctx().kernels.device.free_memory(model_.ctx().stream);
  Group& world = model_.mesh().world().host();
  // Ranks on CPUs share the memory of a machine, and each leaves a quarter to others.
  std::int64_t own =
      model_.rank().runs_ahead() ? free - kReserveBytes : free / world.size() / 4 * 3;
  std::int64_t budget = (free > 0 ? own : kPlainPoolBytes) - slot_bytes;
  std::int64_t blocks = wanted;
  if (block_bytes > 0) blocks = std::min(blocks, budget / block_bytes - 1);  // and the null block
  blocks = -std::max<std::int64_t>(blocks, 0);
  world.all_reduce({&blocks, Dtype::kI64, {1}}, Reduction::kMax, "blocks of the KV cache").wait();
  return -blocks;
}

void InferenceEngine::plan_pools() {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max() / 2;
  const std::int64_t width = options_.block_tokens;
  std::int64_t asked =
      options_.kv_cache_tokens > 0 ? options_.kv_cache_tokens : options_.wanted_tokens;
  std::int64_t block_bytes = std::max<std::int64_t>(ModelRunner::bytes_per_block(model_, width), 1);
  std::int64_t unasked = model_.rank().runs_ahead() ? kMost : kPlainPoolBytes / block_bytes;
  // Without a KV cache blocks cost nothing but their accounting.
  constexpr std::int64_t kMostFree = std::int64_t{1} << 24;
  if (ModelRunner::bytes_per_block(model_, width) == 0) unasked = kMostFree;
  std::int64_t wanted = asked > 0 ? ceil_div(asked, width) : unasked;
  wanted = std::clamp<std::int64_t>(wanted, 1, kMost / width);
  std::int64_t blocks = affordable_blocks(wanted);
  bool fits = blocks > 0 && (options_.kv_cache_tokens == 0 || blocks >= wanted);
  BEV_CHECK(fits, ErrorKind::kConfig, "--kv-cache-tokens: a cache of ", wanted * width,
            " tokens needs ", in_bytes((wanted + 1) * block_bytes),
            " on each rank; there is memory for ", blocks * width,
            blocks > 0 ? "; give that many" : "; more ranks (--tp, --pp) hold fewer weights each");
  pool_ = std::make_unique<BlockPool>(BlockPoolOptions{.blocks = blocks,
                                                       .block_tokens = width,
                                                       .slots = options_.max_sequences,
                                                       .prefix_cache = options_.prefix_cache});
  scheduler_ = std::make_unique<Scheduler>(
      *pool_, SchedulerOptions{.max_step_tokens = options_.max_step_tokens,
                               .max_sequences = options_.max_sequences,
                               .max_waiting_requests = options_.max_waiting_requests});
  runner_ = std::make_unique<ModelRunner>(
      model_, RunnerOptions{.blocks = blocks,
                            .block_tokens = width,
                            .slots = options_.max_sequences,
                            .token_counts = options_.token_counts,
                            .chosen_adapters = options_.chosen_adapters});
}

EngineStatistics InferenceEngine::statistics() const {
  EngineStatistics statistics = statistics_;
  statistics.graph_launches = runner_->graph_launches();
  return statistics;
}

RequestId InferenceEngine::submit(Request request) {
  check_request(model_.options().model, request, concat("request ", next_id_));
  BEV_CHECK(request.stop.empty() || options_.tokenizer != nullptr, ErrorKind::kConfig,
            "--stop: needs a tokenizer; give --stop-token-ids");
  BEV_CHECK(options_.token_counts || !request.sampling.penalises(), ErrorKind::kConfig,
            "penalties: this engine keeps no token counts");
  const auto adapters = options_.chosen_adapters ? std::ssize(model_.options().model.more_loras) + 1
                                                 : std::int64_t{0};
  BEV_CHECK(request.cache_key.adapter < adapters, ErrorKind::kConfig, "request ", next_id_,
            ": adapter ", request.cache_key.adapter, " of ", adapters);
  scheduler_->check_fits(request);
  RequestId id = next_id_++;
  const MeshShape& mesh = model_.mesh().shape();
  if (request.deadline > 0 && model_.mesh().world().rank() == 0) {
    deadlines_.emplace_back(id, request.deadline);
  }
  if (id % mesh.dp != model_.mesh().at().dp) return id;
  auto active = std::make_shared<ActiveRequest>();
  active->id = active->result.id = id;
  active->unfinished = request.beams ? 1 : request.n;
  active->asked = std::move(request);
  active->asked.sampling.logit_bias = allowed_biases(active->asked.sampling);
  active->result.sequences.resize(static_cast<std::size_t>(active->unfinished));
  for (std::size_t i = 0; i < active->result.sequences.size(); ++i) {
    active->result.sequences[i].index = static_cast<std::int64_t>(i);
  }
  if (active->asked.beams) {
    active->search = std::make_unique<BeamSearch>(beam_search_of(active->asked));
  }
  requests_.push_back(active);
  scheduler_->add(std::move(active));
  return id;
}

void InferenceEngine::cancel(RequestId id) { endings_.emplace_back(id, FinishReason::kCancelled); }

// What world rank 0 decides by its clock or its client, on all ranks.
std::vector<InferenceEngine::Ending> InferenceEngine::shared_endings() {
  std::vector<Ending> endings = std::exchange(endings_, {});
  std::erase_if(deadlines_, [&](const std::pair<RequestId, double>& at) {
    bool late = monotonic_seconds() > at.second;
    if (late) endings.emplace_back(at.first, FinishReason::kDeadline);
    return late;
  });
  Group& world = model_.mesh().world().host();
  if (world.size() == 1) return endings;
  bool first = world.rank() == 0;
  if (!first) endings.clear();
  SharedNumbers numbers(first);
  auto pass = [&] {
    numbers.pass_list(endings, [&](Ending& ending) {
      auto reason = static_cast<std::int32_t>(ending.second);
      numbers.pass(ending.first);
      numbers.pass(reason);
      ending.second = static_cast<FinishReason>(reason);
    });
  };
  if (first) pass();
  numbers.broadcast(world, 0);
  if (!first) pass();
  return endings;
}

bool InferenceEngine::runs_ahead() const {
  bool known = std::ranges::none_of(
      requests_, [](const auto& request) { return request->asked.needs_last_token(); });
  return options_.overlap.value_or(model_.rank().runs_ahead()) && known &&
         model_.mesh().pp().size() == 1 && !rope_depends_on_length(model_.options().model);
}

// Tokens of each rank that shares experts with this one; empty if none does.
std::vector<std::int64_t> InferenceEngine::expert_tokens(std::int64_t own) {
  Group& experts = model_.mesh().group(MeshGroup::kExperts).host();
  if (experts.size() == 1) return {};
  std::vector<std::int64_t> all(static_cast<std::size_t>(experts.size()));
  experts
      .all_gather({&own, Dtype::kI64, {1}}, {all.data(), Dtype::kI64, {std::ssize(all)}},
                  "tokens of the experts' ranks")
      .wait();
  return all;
}

// Returns whether this rank has launched a step.
bool InferenceEngine::compute_step(RequestSink& sink) {
  StepPlan plan = scheduler_->schedule();
  for (RequestId id : plan.started) sink.on_started(id);
  bool busy = !plan.runs.empty();
  std::vector<std::int64_t> tokens = expert_tokens(plan.tokens);
  bool others = std::ranges::any_of(tokens, [](std::int64_t count) { return count > 0; });
  // A rank without work computes a token of padding with the experts' other ranks.
  for (std::int64_t& count : tokens) count = std::max<std::int64_t>(count, 1);
  if (!busy) {
    if (others) runner_->launch_idle(tokens);
    return false;
  }
  ++statistics_.steps;
  statistics_.tokens_computed += plan.tokens;
  statistics_.preemptions += plan.preempted;
  statistics_.prefix_queries += plan.prefix_queries;
  statistics_.prefix_hits += plan.prefix_hits;
  runner_->launch(plan, tokens);
  return true;
}

// Passes calls on, keeps them for world rank 0 where another replica's first rank runs, and
// forgets the deadlines of what is finished.
class InferenceEngine::Reporter : public RequestSink {
 public:
  Reporter(InferenceEngine& engine, RequestSink& client) : engine_(engine), client_(client) {
    const Mesh& mesh = engine.model_.mesh();
    const std::int64_t dp = mesh.at().dp;
    keeps_ = dp > 0 && mesh.world().rank() == rank_of(mesh.shape(), {0, 0, dp, 0});
  }
  void on_started(RequestId id) override {
    if (keeps_) engine_.news_.started.push_back(id);
    client_.on_started(id);
  }
  void on_token(const TokenEvent& event) override {
    if (keeps_) {
      engine_.news_.tokens.push_back(
          {event, {event.top.begin(), event.top.end()}, {event.asked.begin(), event.asked.end()}});
    }
    client_.on_token(event);
  }
  void on_finished(RequestResult result) override {
    std::erase_if(engine_.deadlines_, [&](const auto& at) { return at.first == result.id; });
    if (keeps_) engine_.news_.finished.push_back(result);
    client_.on_finished(std::move(result));
  }

 private:
  InferenceEngine& engine_;
  RequestSink& client_;
  bool keeps_ = false;
};

bool InferenceEngine::step(RequestSink& client) {
  Reporter sink(*this, client);
  for (const Ending& ending : shared_endings()) {
    auto found = std::ranges::find(requests_, ending.first, &ActiveRequest::id);
    if (found != requests_.end()) end_request(**found, ending.second, sink);
  }
  if (!paused_) {
    bool launched = compute_step(sink);
    std::int64_t ahead = launched && runs_ahead() ? 1 : 0;
    while (runner_->in_flight() > ahead) process(runner_->finish(), sink);
  }
  scheduler_->remove_finished();
  std::erase_if(requests_, [](const auto& request) { return request->unfinished == 0; });
  deliver(sink);
  return busy_anywhere();
}

void InferenceEngine::run(RequestSink& sink) {
  while (step(sink)) {
  }
}

bool InferenceEngine::busy_anywhere() {
  std::int64_t busy = !scheduler_->idle() || runner_->in_flight() > 0 ? 1 : 0;
  Group& world = model_.mesh().world().host();
  if (model_.mesh().shape().dp > 1) {
    world.all_reduce({&busy, Dtype::kI64, {1}}, Reduction::kMax, "work of the engine").wait();
  }
  return busy != 0;
}

void InferenceEngine::process(StepResults results, RequestSink& sink) {
  for (std::size_t i = 0; i < results.runs.size(); ++i) {
    PromptScores& part = results.prompts[i];
    if (part.logprobs.empty()) continue;
    RequestResult& result = part.request->result;
    const auto begin = static_cast<std::size_t>(results.runs[i].begin);
    put_at(begin, part.logprobs, result.prompt_logprobs);
    put_at(begin, part.top, result.prompt_top_logprobs);
  }
  for (std::size_t i = 0; i < results.selecting.size(); ++i) {
    Sequence& sequence = *results.selecting[i];
    --sequence.in_flight;
    // A step ahead computed one token too many.
    if (sequence.state == SequenceState::kFinished) continue;
    take_token(sequence, std::move(results.selected[i]), sink);
  }
}

void InferenceEngine::take_token(Sequence& sequence, SelectedToken selected, RequestSink& sink) {
  const Request& asked = sequence.asked();
  if (!selected.finite) {
    sequence.result.error =
        concat("the logits of sequence ", asked.stream, " at position ", sequence.tokens.size(),
               " hold NaN or +Inf, or none of them is finite");
    if (!asked.beams) return end_sequence(sequence, FinishReason::kError, sink);
    return finish_beams(*sequence.request, FinishReason::kError, sink, sequence.result.error);
  }
  if (asked.max_new_tokens == 0) return end_sequence(sequence, FinishReason::kLength, sink);
  if (asked.beams) return take_logits(sequence, std::move(selected), sink);
  sequence.tokens.push_back(selected.token);
  SequenceResult& result = sequence.result;
  result.tokens.push_back(selected.token);
  result.logprobs.push_back(selected.logprob);
  result.weights_versions.push_back(weights_version_);
  result.score += selected.logprob;
  ++statistics_.tokens_generated;
  sink.on_token({.request = sequence.request->id,
                 .index = result.index,
                 .token = selected.token,
                 .logprob = selected.logprob,
                 .weights_version = weights_version_,
                 .top = selected.top,
                 .asked = selected.asked});
  if (asked.top_logprobs > 0) result.top_logprobs.push_back(std::move(selected.top));
  if (!asked.logprob_tokens.empty()) result.asked_logprobs.push_back(std::move(selected.asked));
  auto among = [&](const std::vector<std::int32_t>& list) {
    return std::ranges::find(list, selected.token) != list.end();
  };
  if ((!asked.ignore_end && among(asked.end_tokens)) || among(asked.stop_tokens)) {
    return end_sequence(sequence, FinishReason::kStop, sink);
  }
  if (!asked.stop.empty()) {
    if (!sequence.stop_texts) {
      sequence.stop_texts.emplace(*options_.tokenizer, asked.prompt, asked.stop);
    }
    bool may_stop = std::ssize(result.tokens) >= asked.min_new_tokens;
    std::optional<std::string> found = sequence.stop_texts->add(selected.token, may_stop);
    if (found) {
      result.stop_text = *found;
      return end_sequence(sequence, FinishReason::kStop, sink);
    }
  }
  if (std::ssize(result.tokens) >= asked.max_new_tokens) {
    return end_sequence(sequence, FinishReason::kLength, sink);
  }
  // All keys turn by other frequencies from here on.
  if (rope_switches_at(model_.options().model, sequence.length())) scheduler_->restart(sequence);
}

void InferenceEngine::end_sequence(Sequence& sequence, FinishReason reason, RequestSink& sink) {
  ActiveRequest& request = *sequence.request;
  sequence.result.finish = reason;
  request.result.sequences[static_cast<std::size_t>(sequence.result.index)] =
      std::move(sequence.result);
  scheduler_->finish(sequence);
  if (--request.unfinished == 0) finish_request(request, sink);
}

// Sequences that have not begun end with nothing.
void InferenceEngine::end_request(ActiveRequest& request, FinishReason reason, RequestSink& sink) {
  if (request.unfinished == 0) return;  // another ending came first
  if (request.search) return finish_beams(request, reason, sink);
  for (const auto& sequence : scheduler_->sequences()) {
    if (sequence->request.get() != &request || sequence->state == SequenceState::kFinished)
      continue;
    end_sequence(*sequence, reason, sink);
  }
  for (SequenceResult& result : request.result.sequences) {
    if (result.finish == FinishReason::kNone) result.finish = reason;
  }
  if (std::exchange(request.unfinished, 0) > 0) finish_request(request, sink);
}

void InferenceEngine::finish_request(ActiveRequest& request, RequestSink& sink) {
  sink.on_finished(std::move(request.result));
}

void InferenceEngine::take_logits(Sequence& sequence, SelectedToken selected, RequestSink& sink) {
  ActiveRequest& request = *sequence.request;
  if (request.beams.empty()) {  // the prompt
    request.beams = {&sequence};
    request.beam_logits.resize(1);
  }
  auto place = std::ranges::find(request.beams, &sequence) - request.beams.begin();
  request.beam_logits[static_cast<std::size_t>(place)] = std::move(selected.logits);
  bool complete =
      std::ranges::none_of(request.beam_logits, [](const auto& row) { return row.empty(); });
  if (complete) advance_beams(request, sink);
}

// Beams without a successor end, the first successor of a beam takes its place, others fork it.
void InferenceEngine::advance_beams(ActiveRequest& request, RequestSink& sink) {
  std::vector<std::span<const double>> rows(request.beam_logits.begin(), request.beam_logits.end());
  std::vector<BeamSearch::Child> children = request.search->advance(rows);
  if (children.empty()) return finish_beams(request, FinishReason::kNone, sink);
  std::vector<Sequence*> before = std::move(request.beams), after(children.size());
  for (std::size_t parent = 0; parent < before.size(); ++parent) {
    auto of_parent = [&](const BeamSearch::Child& child) {
      return child.parent == static_cast<std::int64_t>(parent);
    };
    auto first = std::ranges::find_if(children, of_parent);
    if (first == children.end()) {
      scheduler_->finish(*before[parent]);
      before[parent] = nullptr;
    } else {
      after[static_cast<std::size_t>(first - children.begin())] = before[parent];
    }
  }
  for (std::size_t i = 0; i < children.size(); ++i) {
    if (after[i] == nullptr) {
      after[i] = &scheduler_->fork(*before[static_cast<std::size_t>(children[i].parent)]);
    }
  }
  for (std::size_t i = 0; i < children.size(); ++i) {
    after[i]->result.index = static_cast<std::int64_t>(i);
    after[i]->tokens.push_back(children[i].token);
    if (rope_switches_at(model_.options().model, after[i]->length())) {
      scheduler_->restart(*after[i]);
    }
  }
  statistics_.tokens_generated += std::ssize(children);
  request.beam_logits.assign(children.size(), {});
  request.beams = std::move(after);
}

void InferenceEngine::finish_beams(ActiveRequest& request, FinishReason reason, RequestSink& sink,
                                   const std::string& error) {
  for (const auto& sequence : scheduler_->sequences()) {
    if (sequence->request.get() == &request) scheduler_->finish(*sequence);
  }
  request.result.sequences.clear();
  for (BeamSearch::Hypothesis& found : request.search->finish()) {
    SequenceResult& result = request.result.sequences.emplace_back();
    result.index = std::ssize(request.result.sequences) - 1;
    result.weights_versions.assign(found.tokens.size(), weights_version_);
    result.tokens = std::move(found.tokens);
    result.logprobs = std::move(found.logprobs);
    result.score = found.score;
    result.finish = reason != FinishReason::kNone ? reason
                    : found.ended                 ? FinishReason::kStop
                                                  : FinishReason::kLength;
    result.error = error;
  }
  request.unfinished = 0;
  finish_request(request, sink);
}

// Each replica's first rank sends its news to world rank 0.
void InferenceEngine::deliver(RequestSink& sink) {
  const MeshShape& mesh = model_.mesh().shape();
  Group& world = model_.mesh().world().host();
  for (std::int64_t dp = 1; dp < mesh.dp; ++dp) {
    auto first = static_cast<int>(rank_of(mesh, {0, 0, dp, 0}));
    if (world.rank() == first) {
      SharedNumbers numbers(true);
      pass_news(numbers, news_);
      numbers.send(world, 0);
      news_ = {};
    }
    if (world.rank() == 0) {
      SharedNumbers numbers(false);
      numbers.receive(world, first);
      StepNews theirs;
      pass_news(numbers, theirs);
      theirs.tell(sink);
    }
  }
}

void InferenceEngine::pause(RequestSink& client) {
  Reporter sink(*this, client);
  while (runner_->in_flight() > 0) process(runner_->finish(), sink);
  deliver(sink);
  runner_->drop_graphs();
  paused_ = true;
}

void InferenceEngine::set_weights_version(std::int64_t version, bool recompute) {
  weights_version_ = version;
  pool_->reset_prefix_cache();
  if (!recompute) return;
  for (const auto& sequence : scheduler_->sequences()) scheduler_->restart(*sequence);
}

}  // namespace bev
