// The inference engine of one rank: continuous batching over a paged cache. Clients submit requests
// and call step() until nothing is left; generate, the server and rollouts are such clients.
//
//   requests -> Scheduler (who computes what, BlockPool) -> ModelRunner (device) -> tokens, results
//
// The engine computes with the parameters of the RankModel where they lie: training and inference
// share one copy. A step is collective over the ranks; all of them submit the same requests, and
// data-parallel replicas share them among each other.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "infer/model_runner.h"
#include "infer/request.h"
#include "infer/scheduler.h"
#include "infer/step_news.h"
#include "parallel/rank_model.h"

namespace bev {

class Tokenizer;

struct InferenceOptions {
  std::int64_t max_sequences = 256;       // that run at a time
  std::int64_t max_step_tokens = 8192;    // computed in a step
  std::int64_t max_waiting_requests = 0;  // 0: no bound
  std::int64_t block_tokens = 64;         // a power of two
  std::int64_t kv_cache_tokens = 0;       // 0: what fits into memory, or wanted_tokens
  std::int64_t wanted_tokens = 0;         // more would not be used; 0: not known
  bool prefix_cache = true;
  bool token_counts = true;      // requests may have penalties
  bool chosen_adapters = false;  // requests choose one of the model's adapters, or none
  // The next step is launched before the tokens of the last are known; absent: where the device
  // works asynchronously.
  std::optional<bool> overlap = {};
  const Tokenizer* tokenizer = nullptr;  // for stop texts
};

// Counters since the start.
struct EngineStatistics {
  std::int64_t steps = 0, tokens_computed = 0, tokens_generated = 0;
  std::int64_t preemptions = 0;
  std::int64_t prefix_queries = 0, prefix_hits = 0;  // tokens
  std::int64_t graph_launches = 0;
};

class InferenceEngine {
 public:
  // Allocates all device memory that it will use, as far as the device works asynchronously. The
  // model must outlive the engine; its weights need not be loaded yet. Error(kConfig) for a layout
  // that inference_layout would not give, or if not even one sequence fits.
  InferenceEngine(RankModel& model, const InferenceOptions& options);
  ~InferenceEngine();

  RankModel& model() { return model_; }
  const InferenceOptions& options() const { return options_; }
  BlockUsage blocks() const { return pool_->usage(); }
  EngineStatistics statistics() const;
  std::int64_t running() const { return scheduler_->running(); }
  std::int64_t waiting() const { return scheduler_->waiting(); }

  // All ranks submit the same requests in the same order. Throws Error(kInput) for a request that
  // can never run, Error(kConfig) for wrong options.
  RequestId submit(Request request);
  // Whether the queue has room.
  bool accepts() const { return scheduler_->accepts(); }
  // Ends a request with what it has so far, at the next step. World rank 0 decides.
  void cancel(RequestId id);

  // Computes one step. Returns false when no rank has anything left to do. World rank 0 hears of
  // all requests, step by step, other ranks of those of their replica. While paused nothing is
  // computed.
  bool step(RequestSink& client);
  // Steps until nothing is left.
  void run(RequestSink& sink);

  // Waits for the steps under way; step() then does nothing before resume(). CUDA graphs are
  // dropped, so that the memory of steps can serve training.
  void pause(RequestSink& client);
  void resume() { paused_ = false; }
  bool paused() const { return paused_; }
  // The weights changed in place: cached prefixes are forgotten, and tokens from now on carry the
  // version. Sequences under way go on with the keys they have, or with `recompute` are computed
  // anew.
  void set_weights_version(std::int64_t version, bool recompute = false);
  std::int64_t weights_version() const { return weights_version_; }
  void reset_prefix_cache() { pool_->reset_prefix_cache(); }

 private:
  class Reporter;
  using Ending = std::pair<RequestId, FinishReason>;

  void plan_pools();
  void warm_up();
  std::int64_t affordable_blocks(std::int64_t wanted);
  bool runs_ahead() const;
  std::vector<Ending> shared_endings();
  void end_request(ActiveRequest& request, FinishReason reason, RequestSink& sink);
  std::vector<std::int64_t> expert_tokens(std::int64_t own);
  bool compute_step(RequestSink& sink);
  void process(StepResults results, RequestSink& sink);
  void take_token(Sequence& sequence, SelectedToken selected, RequestSink& sink);
  void end_sequence(Sequence& sequence, FinishReason reason, RequestSink& sink);
  void finish_request(ActiveRequest& request, RequestSink& sink);
  void take_logits(Sequence& sequence, SelectedToken selected, RequestSink& sink);
  void advance_beams(ActiveRequest& request, RequestSink& sink);
  void finish_beams(ActiveRequest& request, FinishReason reason, RequestSink& sink,
                    const std::string& error = {});
  void deliver(RequestSink& sink);
  bool busy_anywhere();

  RankModel& model_;
  InferenceOptions options_;
  std::unique_ptr<BlockPool> pool_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<ModelRunner> runner_;
  std::vector<std::shared_ptr<ActiveRequest>> requests_;  // unfinished, in order of arrival
  std::vector<Ending> endings_;                           // wanted by this rank
  std::vector<std::pair<RequestId, double>> deadlines_;   // of all replicas; on world rank 0
  StepNews news_;                                         // not yet sent to world rank 0
  RequestId next_id_ = 0;
  EngineStatistics statistics_;
  std::int64_t weights_version_ = 0;
  bool paused_ = false;
};

}  // namespace bev
