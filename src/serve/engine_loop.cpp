#include "serve/engine_loop.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "serve/shared_request.h"

namespace bev {

namespace {

enum class CommandKind : std::uint8_t {
  kSubmit,
  kCancel,
  kEmbed,
  kPause,
  kPauseWhenIdle,
  kResume,
  kResetPrefixCache,
  kStop,
};

// Other ranks wait for world rank 0, but not for long: a collective that takes minutes is a hang.
constexpr auto kHeartbeat = std::chrono::seconds(1);

}  // namespace

struct EngineLoop::Command {
  CommandKind kind = CommandKind::kStop;
  Ticket ticket = 0;
  Request request = {};
  std::vector<std::vector<std::int32_t>> rows = {};
  EmbeddingOptions embedding = {};
  // On world rank 0.
  std::shared_ptr<EngineClient> client = {};
  std::int64_t part = 0;

  void pass(SharedNumbers& numbers) {
    auto as_number = static_cast<std::int32_t>(kind);
    numbers.pass(as_number);
    kind = static_cast<CommandKind>(as_number);
    numbers.pass(ticket);
    if (kind == CommandKind::kSubmit) pass_request(numbers, request);
    if (kind != CommandKind::kEmbed) return;
    numbers.pass_list(rows, [&](auto& row) { numbers.pass_list(row); });
    auto pooling = static_cast<std::int32_t>(embedding.pooling);
    numbers.pass(pooling);
    embedding.pooling = static_cast<Pooling>(pooling);
    numbers.pass(embedding.normalize);
    numbers.pass(embedding.batch_tokens);
  }
};

struct EngineLoop::State {
  mutable std::mutex mutex;
  std::condition_variable arrived;
  std::vector<Command> commands;
  Ticket next_ticket = 0;
  EngineSnapshot snapshot;
  bool failed = false;
};

namespace {

// What happened in a step, for the thread of the clients.
class Delivery : public IoTask {
 public:
  enum class Kind : std::uint8_t { kStarted, kToken, kFinished, kEmbeddings, kApplied, kFailed };
  struct Event {
    Kind kind = Kind::kStarted;
    std::shared_ptr<EngineClient> client;
    std::int64_t part = 0;
    NewToken token = {};
    std::unique_ptr<RequestResult> result = {};
    std::vector<std::vector<double>> rows = {};
    std::optional<Error> error = {};
  };

  void run() override {
    for (Event& event : events) {
      switch (event.kind) {
        case Kind::kStarted:
          event.client->on_started(event.part);
          break;
        case Kind::kToken:
          event.client->on_token(event.part, std::move(event.token));
          break;
        case Kind::kFinished:
          event.client->on_finished(event.part, std::move(*event.result));
          break;
        case Kind::kEmbeddings:
          event.client->on_embeddings(std::move(event.rows));
          break;
        case Kind::kApplied:
          event.client->on_applied();
          break;
        case Kind::kFailed:
          event.client->on_failed(event.part, *event.error);
          break;
      }
    }
  }

  std::vector<Event> events;
};

}  // namespace

// The clients of the requests under way; of world rank 0.
class EngineLoop::Clients : public RequestSink {
 public:
  explicit Clients(Outlet& outlet) : outlet_(outlet) {}

  void add(RequestId id, Command& command) {
    ids_[command.ticket] = id;
    live_[id] = {std::move(command.client), command.part, command.ticket};
  }
  // Nothing if it is finished.
  void cancel(InferenceEngine& engine, Ticket ticket) const {
    auto found = ids_.find(ticket);
    if (found != ids_.end()) engine.cancel(found->second);
  }
  void embedded(Command& command, std::vector<std::vector<double>> rows) {
    Delivery::Event& event = add_event(Delivery::Kind::kEmbeddings, command.client, command.part);
    event.rows = std::move(rows);
  }
  void applied(const Command& command) {
    if (command.client) add_event(Delivery::Kind::kApplied, command.client, command.part);
  }
  void refused(const Command& command, const Error& error) {
    add_event(Delivery::Kind::kFailed, command.client, command.part).error = error;
  }
  void fail_all(const Error& error) {
    for (auto& [id, live] : live_) {
      add_event(Delivery::Kind::kFailed, live.client, live.part).error = error;
    }
    live_.clear();
    flush();
  }

  void on_started(RequestId id) override {
    const Live& live = live_.at(id);
    add_event(Delivery::Kind::kStarted, live.client, live.part);
  }
  void on_token(const TokenEvent& token) override {
    const Live& live = live_.at(token.request);
    add_event(Delivery::Kind::kToken, live.client, live.part).token = {
        .index = token.index,
        .token = token.token,
        .logprob = token.logprob,
        .weights_version = token.weights_version,
        .top = {token.top.begin(), token.top.end()},
        .asked = {token.asked.begin(), token.asked.end()}};
  }
  void on_finished(RequestResult result) override {
    auto found = live_.find(result.id);
    Delivery::Event& event =
        add_event(Delivery::Kind::kFinished, found->second.client, found->second.part);
    event.result = std::make_unique<RequestResult>(std::move(result));
    ids_.erase(found->second.ticket);
    live_.erase(found);
  }

  // One wake-up of the clients' thread for all events of a step.
  void flush() {
    if (delivery_) outlet_.post(std::move(delivery_));
  }

 private:
  struct Live {
    std::shared_ptr<EngineClient> client;
    std::int64_t part = 0;
    Ticket ticket = 0;
  };

  Delivery::Event& add_event(Delivery::Kind kind, std::shared_ptr<EngineClient> client,
                             std::int64_t part) {
    if (!delivery_) delivery_ = std::make_unique<Delivery>();
    return delivery_->events.emplace_back(
        Delivery::Event{.kind = kind, .client = std::move(client), .part = part});
  }

  Outlet& outlet_;
  std::unordered_map<RequestId, Live> live_;
  std::unordered_map<Ticket, RequestId> ids_;
  std::unique_ptr<Delivery> delivery_;
};

EngineLoop::EngineLoop(Outlet& outlet) : outlet_(outlet), state_(std::make_unique<State>()) {}
EngineLoop::~EngineLoop() = default;

void EngineLoop::add(Command command) {
  std::lock_guard lock(state_->mutex);
  state_->commands.push_back(std::move(command));
  state_->arrived.notify_one();
}

Ticket EngineLoop::submit(Request request, std::shared_ptr<EngineClient> client,
                          std::int64_t part) {
  std::lock_guard lock(state_->mutex);
  Ticket ticket = state_->next_ticket++;
  state_->commands.push_back({.kind = CommandKind::kSubmit,
                              .ticket = ticket,
                              .request = std::move(request),
                              .client = std::move(client),
                              .part = part});
  state_->arrived.notify_one();
  return ticket;
}

void EngineLoop::cancel(Ticket ticket) { add({.kind = CommandKind::kCancel, .ticket = ticket}); }
void EngineLoop::pause(bool when_idle, std::shared_ptr<EngineClient> client) {
  add({.kind = when_idle ? CommandKind::kPauseWhenIdle : CommandKind::kPause,
       .client = std::move(client)});
}
void EngineLoop::resume(std::shared_ptr<EngineClient> client) {
  add({.kind = CommandKind::kResume, .client = std::move(client)});
}
void EngineLoop::reset_prefix_cache(std::shared_ptr<EngineClient> client) {
  add({.kind = CommandKind::kResetPrefixCache, .client = std::move(client)});
}
void EngineLoop::stop() { add({.kind = CommandKind::kStop}); }

void EngineLoop::embed(std::vector<std::vector<std::int32_t>> rows, const EmbeddingOptions& options,
                       std::shared_ptr<EngineClient> client) {
  add({.kind = CommandKind::kEmbed,
       .rows = std::move(rows),
       .embedding = options,
       .client = std::move(client)});
}

EngineSnapshot EngineLoop::snapshot() const {
  std::lock_guard lock(state_->mutex);
  return state_->snapshot;
}

bool EngineLoop::failed() const {
  std::lock_guard lock(state_->mutex);
  return state_->failed;
}

// Waits for the first command if the engine has nothing to do.
std::vector<EngineLoop::Command> EngineLoop::take_commands(bool busy, bool alone) {
  std::unique_lock lock(state_->mutex);
  auto come = [&] { return !state_->commands.empty(); };
  if (!busy && alone) state_->arrived.wait(lock, come);
  if (!busy && !alone) state_->arrived.wait_for(lock, kHeartbeat, come);
  return std::exchange(state_->commands, {});
}

namespace {

// The numbers of all replicas together; each counts for itself.
EngineSnapshot snapshot_of(InferenceEngine& engine) {
  EngineSnapshot out{.blocks = engine.blocks(),
                     .statistics = engine.statistics(),
                     .running = engine.running(),
                     .waiting = engine.waiting(),
                     .weights_version = engine.weights_version(),
                     .paused = engine.paused()};
  const Mesh& mesh = engine.model().mesh();
  if (mesh.shape().dp == 1) return out;
  Group& world = mesh.world().host();
  EngineStatistics& sums = out.statistics;
  BlockUsage& blocks = out.blocks;
  std::vector<std::int64_t*> parts = {
      &blocks.free,          &blocks.cached,         &blocks.used,      &blocks.total,
      &blocks.free_slots,    &out.running,           &out.waiting,      &sums.steps,
      &sums.tokens_computed, &sums.tokens_generated, &sums.preemptions, &sums.prefix_queries,
      &sums.prefix_hits,     &sums.graph_launches};
  // All ranks of a replica count the same.
  const auto ranks = world.size() / mesh.shape().dp;
  std::vector<std::int64_t> values;
  for (std::int64_t* part : parts) values.push_back(*part);
  world
      .all_reduce({values.data(), Dtype::kI64, {std::ssize(values)}}, Reduction::kSum,
                  "numbers of the engine")
      .wait();
  for (std::size_t i = 0; i < parts.size(); ++i) *parts[i] = values[i] / ranks;
  return out;
}

}  // namespace

// The commands of a step on every rank: those of world rank 0.
std::vector<EngineLoop::Command> EngineLoop::shared_commands(bool busy, Group& world) {
  const bool alone = world.size() == 1, first = world.rank() == 0;
  std::vector<Command> commands;
  if (first) commands = take_commands(busy, alone);
  if (alone) return commands;
  SharedNumbers numbers(first);
  auto pass = [&] {
    numbers.pass_list(commands, [&](Command& command) { command.pass(numbers); });
  };
  if (first) pass();
  numbers.broadcast(world, 0);
  if (!first) pass();
  return commands;
}

// Tells the clients of all commands.
void EngineLoop::refuse_all(Clients& clients, const Error& error) {
  {
    std::lock_guard lock(state_->mutex);
    state_->failed = true;
  }
  for (const Command& command : take_commands(true, true)) {
    if (command.client) clients.refused(command, error);
  }
  clients.fail_all(error);
}

// The loop of one rank.
class EngineLoop::RankLoop {
 public:
  RankLoop(EngineLoop& loop, InferenceEngine& engine)
      : loop_(loop),
        engine_(engine),
        world_(engine.model().mesh().world().host()),
        first_(world_.rank() == 0),
        clients_(loop.outlet_) {}

  void run() {
    RequestSink unheard;
    RequestSink& sink = first_ ? clients_ : unheard;
    bool busy = false;
    while (!stopping_) {
      for (Command& command : loop_.shared_commands(busy, world_)) apply(command, sink);
      busy = engine_.step(sink) && !engine_.paused();
      if (!busy) pause_idle(sink);
      publish(snapshot_of(engine_));
      clients_.flush();
    }
  }

  void fail(const Error& error) {
    if (first_) loop_.refuse_all(clients_, error);
  }

 private:
  void apply(Command& command, RequestSink& sink) {
    switch (command.kind) {
      case CommandKind::kSubmit:
        return submit(command);
      case CommandKind::kCancel:
        if (first_) clients_.cancel(engine_, command.ticket);
        return;
      case CommandKind::kEmbed:
        return embed(command);
      case CommandKind::kPause:
        engine_.pause(sink);
        return clients_.applied(command);
      case CommandKind::kPauseWhenIdle:
        pause_when_idle_.push_back(std::move(command));
        return;
      case CommandKind::kResume:
        engine_.resume();
        return clients_.applied(command);
      case CommandKind::kResetPrefixCache:
        engine_.reset_prefix_cache();
        return clients_.applied(command);
      case CommandKind::kStop:
        stopping_ = true;
        return;
    }
  }

  void pause_idle(RequestSink& sink) {
    for (const Command& command : std::exchange(pause_when_idle_, {})) {
      engine_.pause(sink);
      clients_.applied(command);
    }
  }

  // All ranks refuse the same requests.
  void submit(Command& command) {
    try {
      RequestId id = engine_.submit(std::move(command.request));
      if (first_) clients_.add(id, command);
    } catch (const Error& error) {
      if (first_) clients_.refused(command, error);
    }
  }

  void embed(Command& command) {
    std::vector<std::vector<double>> rows =
        embeddings(engine_.model(), command.rows, command.embedding);
    if (first_) clients_.embedded(command, std::move(rows));
  }

  void publish(const EngineSnapshot& snapshot) {
    if (!first_) return;
    std::lock_guard lock(loop_.state_->mutex);
    loop_.state_->snapshot = snapshot;
  }

  EngineLoop& loop_;
  InferenceEngine& engine_;
  Group& world_;
  bool first_;
  Clients clients_;
  std::vector<Command> pause_when_idle_;
  bool stopping_ = false;
};

// The loop of one rank with a model that does not generate.
class EngineLoop::EmbeddingLoop {
 public:
  EmbeddingLoop(EngineLoop& loop, RankModel& model)
      : loop_(loop),
        model_(model),
        world_(model.mesh().world().host()),
        first_(world_.rank() == 0),
        clients_(loop.outlet_) {}

  void run() {
    while (!stopping_) {
      for (Command& command : loop_.shared_commands(false, world_)) apply(command);
      clients_.flush();
    }
  }
  void fail(const Error& error) {
    if (first_) loop_.refuse_all(clients_, error);
  }

 private:
  void apply(Command& command) {
    stopping_ = stopping_ || command.kind == CommandKind::kStop;
    if (command.kind == CommandKind::kEmbed) {
      std::vector<std::vector<double>> rows = embeddings(model_, command.rows, command.embedding);
      if (first_) clients_.embedded(command, std::move(rows));
    } else if (command.kind == CommandKind::kSubmit) {
      if (!first_) return;
      clients_.refused(command, Error(ErrorKind::kInput,
                                      "the model is an encoder, which generates nothing; "
                                      "use /v1/embeddings"));
    } else if (first_) {
      clients_.applied(command);
    }
  }

  EngineLoop& loop_;
  RankModel& model_;
  Group& world_;
  bool first_;
  Clients clients_;
  bool stopping_ = false;
};

void EngineLoop::run_embeddings(RankModel& model) {
  EmbeddingLoop loop(*this, model);
  try {
    loop.run();
  } catch (const Error& error) {
    loop.fail(error);
    throw;
  }
}

void EngineLoop::run(InferenceEngine& engine) {
  RankLoop loop(*this, engine);
  try {
    loop.run();
  } catch (const Error& error) {
    loop.fail(error);
    throw;
  }
}

}  // namespace bev
