// Continues prompts with a model, keys and values kept. Every step is one call of the decoder: the
// first takes all prompts packed one after the other, the next ones a token of each sequence that
// is still alive.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "infer/sampler.h"
#include "parallel/rank_model.h"

namespace bev {

class DeviceGraph;

struct GenerationOptions {
  std::int64_t max_new_tokens = 64;
  SamplingOptions sampling;
  std::vector<std::int32_t> eos;  // any of them ends its sequence
  bool ignore_eos = false;
  bool interruptible = false;       // after each step asks the sink of world rank 0 whether to stop
  std::int64_t first_sequence = 0;  // number of the first prompt, for the random numbers
  // Of this rank for keys and values. Prompts beyond it wait for the ones before; one always runs.
  std::int64_t cache_bytes = std::int64_t{4} << 30;
};

// Everything about a request that can be refused before the model is there: Error of kind config or
// input.
void check_generation(const ModelConfig& model, std::span<const std::vector<std::int32_t>> prompts,
                      const GenerationOptions& options);

// What was added to a prompt; an end-of-sequence token that ended it is the last one.
struct GeneratedSequence {
  std::vector<std::int32_t> tokens;
  std::vector<double> logprobs;  // of each token at temperature 1
};

// Hears of tokens as they come; `sequence` is an index into the prompts.
class TokenSink {
 public:
  virtual ~TokenSink() = default;
  virtual void on_token(std::int64_t sequence, const TokenChoice& choice) = 0;
  // Whether to end all sequences as far as they came; for GenerationOptions::interruptible.
  virtual bool wants_stop() const { return false; }
};

// Results do not depend on the other prompts of a call, with one exception: dynamic and longrope
// frequencies follow the longest sequence alive, as in Hugging Face's batches.
class Generator {
 public:
  // Uses the rank's memory and threads; the model may be training. Error(kConfig) for a layout that
  // inference_layout would not give.
  explicit Generator(RankModel& model);
  ~Generator();

  // Every rank of the pipeline's tp groups calls it with the same arguments (but for the sink) and
  // gets the same result. Prompts have unequal lengths, none is empty. Waits for the device at each
  // step.
  std::vector<GeneratedSequence> generate(std::span<const std::vector<std::int32_t>> prompts,
                                          const GenerationOptions& options,
                                          TokenSink* sink = nullptr);

 private:
  // A sequence in the batch. Its keys and values are the cache rows from first_row on.
  struct Live {
    std::size_t index = 0;                     // of the prompt
    std::int64_t slot = 0;                     // of its states of constant size
    std::int64_t first_row = 0, capacity = 0;  // rows it may come to
    std::int64_t length = 0;                   // tokens so far, those to run included
    std::span<const std::int32_t> pending;     // its last tokens, not yet run
    std::span<const std::int32_t> prompt;
  };
  // What one call of the decoder gets.
  struct Step {
    MicroBatch batch;
    DecodeStep decode;
    std::vector<std::int64_t> last_rows;  // of each sequence, in the batch
  };
  struct StepValues;  // its numbers, on the host
  // A token of each of some sequences, as the device recorded it: good while these sequences live.
  struct RecordedStep {
    std::vector<std::int64_t> first_rows;  // of the sequences
    Step step;
    Tensor logits;
    std::unique_ptr<DeviceGraph> recording;
  };

  // States of the stage's layers for so many tokens and sequences in all.
  std::vector<LayerState> make_cache(std::int64_t rows, std::size_t sequences);
  // Bytes of a token's states on the rank that has most.
  std::int64_t bytes_per_token();
  static bool one_token_each(std::span<const Live> live);
  static StepValues values_of(std::span<const Live> live);
  Step make_step(std::span<const Live> live);
  bool recordable(std::span<const Live> live) const;
  // Logits of the recorded step. It is recorded when the same sequences come a second time in a
  // row, each with one token.
  const Tensor* recorded_logits(std::span<const Live> live, std::vector<LayerState>& cache);
  Tensor last_logits(const Var& hidden, std::span<const std::int64_t> rows);
  // After this rank's stage, whose input comes from the one before and whose result goes on.
  Var hidden_states(const Step& step, std::vector<LayerState>& cache);
  // The last stage's choices, to all stages.
  std::vector<TokenChoice> share_choices(std::vector<TokenChoice> choices, std::size_t count);
  // Where the token after a sequence's last will stand.
  static TokenPlace place_of(const Live& sequence, const GenerationOptions& options);
  // Of sequences with a row of logits each.
  void pick(const Tensor& logits, std::span<const Live> live, const GenerationOptions& options,
            std::span<TokenChoice> choices);
  void pick_greedily(const Tensor& logits, std::span<const Live> live,
                     const GenerationOptions& options, std::span<TokenChoice> choices);
  // Rows that are left to the host keep the token -1.
  void pick_on_device(const Tensor& logits, std::span<const Live> live,
                      const GenerationOptions& options, std::span<TokenChoice> choices);
  void pick_on_host(const Tensor& logits, std::span<const Live> live,
                    const GenerationOptions& options, std::span<TokenChoice> choices);
  std::vector<TokenChoice> choose(const Var& hidden, std::span<const std::int64_t> rows,
                                  std::span<const Live> live, const GenerationOptions& options);
  // Runs the pending tokens of all sequences and chooses the next ones.
  std::vector<TokenChoice> next_tokens(std::span<const Live> live, std::vector<LayerState>& cache,
                                       const GenerationOptions& options);
  // Rank 0's answer, on all ranks.
  bool stop_wanted(const TokenSink* sink);
  void run(std::vector<Live> live, std::vector<LayerState> cache, const GenerationOptions& options,
           std::vector<GeneratedSequence>& results, TokenSink* sink);

  RankModel& model_;
  RecordedStep recorded_;
};

}  // namespace bev
