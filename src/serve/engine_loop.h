// The inference engine as a service: clients on other threads submit and cancel requests, the
// engine's ranks take them between steps, and the tokens of a step come back in one delivery.
//
//   clients -> commands -> world rank 0 -> all ranks: apply, step -> events -> Outlet -> clients
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "infer/embedding.h"
#include "infer/engine.h"
#include "serve/io_task.h"

namespace bev {

// A token, with its likeliest alternatives, and those that were asked for.
struct NewToken {
  std::int64_t index = 0;  // of the sequence, below n
  std::int32_t token = -1;
  double logprob = 0;
  std::int64_t weights_version = 0;
  std::vector<TopLogprob> top = {}, asked = {};
};

// Whose requests they are. All calls come from the thread of the Outlet. `part` says which of the
// client's requests it is.
class EngineClient {
 public:
  virtual ~EngineClient() = default;
  virtual void on_started(std::int64_t part) { static_cast<void>(part); }
  virtual void on_token(std::int64_t part, NewToken token) {
    static_cast<void>(part), static_cast<void>(token);
  }
  virtual void on_finished(std::int64_t part, RequestResult result) {
    static_cast<void>(part), static_cast<void>(result);
  }
  // The command (pause, resume, ...) is applied.
  virtual void on_applied() {}
  virtual void on_embeddings(std::vector<std::vector<double>> rows) { static_cast<void>(rows); }
  // The engine refused the request, or has failed.
  virtual void on_failed(std::int64_t part, const Error& error) = 0;
};

using Ticket = std::int64_t;

// Where events go: HttpServer::post.
class Outlet {
 public:
  virtual ~Outlet() = default;
  virtual void post(std::unique_ptr<IoTask> task) = 0;
};

// Numbers of the engine after its last step; sums over data-parallel replicas.
struct EngineSnapshot {
  BlockUsage blocks;
  EngineStatistics statistics;
  std::int64_t running = 0, waiting = 0;  // sequences
  std::int64_t weights_version = 0;
  bool paused = false;
};

class EngineLoop {
 public:
  explicit EngineLoop(Outlet& outlet);
  ~EngineLoop();

  // From any thread. Commands are applied in the order in which they were given.
  Ticket submit(Request request, std::shared_ptr<EngineClient> client, std::int64_t part = 0);
  void cancel(Ticket ticket);
  void embed(std::vector<std::vector<std::int32_t>> rows, const EmbeddingOptions& options,
             std::shared_ptr<EngineClient> client);
  // when_idle: once nothing is left to compute.
  void pause(bool when_idle, std::shared_ptr<EngineClient> client);
  void resume(std::shared_ptr<EngineClient> client);
  void reset_prefix_cache(std::shared_ptr<EngineClient> client);
  // Ends run() on all ranks, once the commands before it are applied.
  void stop();
  EngineSnapshot snapshot() const;
  bool failed() const;

  // On every rank: serves until stop(). Commands are those of world rank 0. If a step throws, the
  // clients are told, and it is thrown here.
  void run(InferenceEngine& engine);
  // The same for a model that does not generate: embeddings alone.
  void run_embeddings(RankModel& model);

 private:
  struct Command;
  class Clients;
  class RankLoop;
  class EmbeddingLoop;
  struct State;

  std::vector<Command> take_commands(bool busy, bool alone);
  std::vector<Command> shared_commands(bool busy, Group& world);
  void refuse_all(Clients& clients, const Error& error);
  void add(Command command);

  Outlet& outlet_;
  std::unique_ptr<State> state_;
};

}  // namespace bev
