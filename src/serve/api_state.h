// The state of an Api and its routes, for the sources that define them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "serve/api.h"
#include "serve/api_call.h"
#include "serve/generation.h"
#include "serve/worker_threads.h"

namespace bev {

enum class ApiPhase : std::uint8_t { kLoading, kReady, kPaused, kDraining };

enum class RouteAccess : std::uint8_t { kOpen, kKey, kControl };

enum class RouteThread : std::uint8_t {
  kIo,
  kWorker,
  kEngine,  // a worker first; only while the engine serves
};

struct Api::State : HttpHandler, Outlet {
  using Call = std::shared_ptr<ApiCall>;
  struct Route {
    std::string_view method, path;
    RouteAccess access;
    RouteThread thread;
    void (State::*handle)(const Call& call);
  };
  class Work;

  State(const ServedModel& served, const ApiOptions& wanted);

  void post(std::unique_ptr<IoTask> task) override { server->post(std::move(task)); }
  void on_request(std::shared_ptr<HttpExchange> exchange) override;
  void on_closed(HttpExchange& exchange) override;

  static std::span<const Route> routes();
  static const Route* find_route(const HttpRequest& request);
  // Answers and returns true if the call may not go on.
  bool refused(const Route* route, ApiCall& call) const;
  void check_access(const Route& route, const HttpRequest& request) const;
  void check_loaded() const;
  void check_serving() const;
  std::vector<HttpHeader> common_headers(const HttpRequest& request) const;
  void preflight(ApiCall& call) const;
  std::uint64_t next_random();

  void page(const Call& call);
  void health(const Call& call);
  void models(const Call& call);
  void model_card(const Call& call);
  void metrics_text(const Call& call);
  void version(const Call& call);
  void completion(const Call& call) { generate(GenerationApi::kCompletion, call); }
  void chat(const Call& call) { generate(GenerationApi::kChat, call); }
  void megatron(const Call& call) { generate(GenerationApi::kMegatron, call); }
  void generate(GenerationApi api, const Call& call) {
    start_generation(api, answers, call, next_random());
  }
  void embed(const Call& call) { start_embeddings(answers, call, options.pooling); }
  void tokenize(const Call& call) { answer_tokenize(model, *call); }
  void detokenize(const Call& call) { answer_detokenize(model, *call); }
  void pause(const Call& call);
  void resume(const Call& call);
  void is_paused(const Call& call);
  void reset_cache(const Call& call);
  void weight_info(const Call& call);
  void abort_requests(const Call& call);
  std::string card() const;

  const ServedModel& model;
  const ApiOptions options;
  Metrics metrics;
  CallRegistry registry;
  EngineLoop loop;
  ApiCall::Shared shared;
  Answer::Server answers;
  std::atomic<ApiPhase> phase{ApiPhase::kLoading};
  std::atomic<std::int64_t> preparing{0};  // calls on their way through the workers
  std::uint64_t random_key;
  std::atomic<std::uint64_t> random_count{0};
  std::unique_ptr<WorkerThreads> workers;
  std::unique_ptr<HttpServer> server;  // its thread ends before the rest goes
};

}  // namespace bev
