#include "rl/sampler.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "infer/generate.h"
#include "infer/shared_numbers.h"

namespace bev {

namespace {

// The text of a completion: without end tokens, and up to the text that ended it.
std::string text_of(const Tokenizer& tokenizer, const Request& request, const TokenRow& tokens,
                    const std::string& stop_text) {
  std::vector<std::int32_t> shown;
  for (std::int32_t token : tokens) {
    bool ends = std::ranges::find(request.end_tokens, token) != request.end_tokens.end();
    if (!ends) shown.push_back(token);
  }
  std::string text = tokenizer.decode(shown);
  if (!stop_text.empty()) text.resize(std::min(text.rfind(stop_text), text.size()));
  return text;
}

// Sharded weights are gathered once for all that is sampled, before the cache takes the memory that
// is free.
class GatheredWeights {
 public:
  explicit GatheredWeights(ParamStore& store) : store_(store) {
    store_.hold_gathered();
    for (const Param* param : store_.params()) {
      bool whole = param->format != ParamFormat::kNf4 && !store_.plan().gathers_payload(*param);
      if (whole) store_.use(*param);
    }
  }
  ~GatheredWeights() { store_.release_gathered(); }
  GatheredWeights(const GatheredWeights&) = delete;
  GatheredWeights& operator=(const GatheredWeights&) = delete;

 private:
  ParamStore& store_;
};

}  // namespace

std::vector<SampledRow> RolloutSampler::fresh_group(std::int64_t place) const {
  std::vector<SampledRow> group;
  for (std::int64_t i = 0; i < parts_.config.num_generations; ++i) {
    group.push_back({.group = place, .index = i, .prompt = parts_.prompts.at(place).ids});
  }
  return group;
}

std::int64_t RolloutSampler::room(const SampledRow& row) const {
  return parts_.request.max_new_tokens - std::ssize(row.completion);
}

Request RolloutSampler::request_of(const SampledRow& row, std::int64_t rows,
                                   std::int64_t most) const {
  Request request = parts_.request;
  request.prompt = row.prompt;
  request.prompt.insert(request.prompt.end(), row.completion.begin(), row.completion.end());
  request.n = rows;
  request.max_new_tokens = std::min(most, room(row));
  request.stream = row.group + (row.index << 32);
  return request;
}

// A group that begins is one request, whose sequences share the prompt; rows that go on are one
// each.
std::vector<RolloutSampler::Part> RolloutSampler::parts_of(
    std::span<std::vector<SampledRow>> groups, std::int64_t most) const {
  std::vector<Part> out;
  for (std::vector<SampledRow>& group : groups) {
    const bool begins = std::ranges::all_of(
        group, [](const SampledRow& row) { return row.completion.empty() && !row.finished(); });
    if (begins) out.push_back({{}, request_of(group.front(), std::ssize(group), most)});
    for (SampledRow& row : group) {
      if (row.finished()) continue;
      if (!begins) out.push_back({{}, request_of(row, 1, most)});
      out.back().rows.push_back(&row);
    }
  }
  return out;
}

void RolloutSampler::share(std::vector<Request>& requests) {
  SharedNumbers numbers(first());
  auto pass = [&] {
    numbers.pass_list(requests, [&](Request& request) {
      std::int64_t n = request.n, most = request.max_new_tokens, stream = request.stream;
      TokenRow prompt = request.prompt;
      numbers.pass(n);
      numbers.pass(most);
      numbers.pass(stream);
      numbers.pass_list(prompt);
      if (first()) return;
      request = parts_.request;
      request.n = n;
      request.max_new_tokens = most;
      request.stream = stream;
      request.prompt = std::move(prompt);
    });
  };
  if (first()) pass();
  numbers.broadcast(engine_.model().mesh().world().host(), 0);
  if (!first()) pass();
}

void RolloutSampler::extend(std::span<std::vector<SampledRow>> groups, std::int64_t most) {
  std::vector<Part> parts;
  if (first()) parts = parts_of(groups, most);
  std::vector<Request> requests;
  for (Part& part : parts) requests.push_back(std::move(part.request));
  share(requests);
  if (requests.empty()) return;
  RankModel& model = engine_.model();
  const GatheredWeights gathered(model.store());
  // It lives for the phase only, so that the memory of its cache is there for training.
  InferenceEngine inference(model, options_for(requests, parts_.engine));
  inference.set_weights_version(engine_.updates());
  std::vector<RequestResult> results = generate(inference, requests);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    for (std::size_t row = 0; row < parts[i].rows.size(); ++row) {
      take(results[i].sequences[row], *parts[i].rows[row]);
    }
  }
}

void RolloutSampler::take(const SequenceResult& result, SampledRow& row) const {
  BEV_CHECK(result.finish != FinishReason::kError, ErrorKind::kNumeric, "rollout: ", result.error);
  if (row.completion.empty() && !result.weights_versions.empty()) {
    row.weights_version = result.weights_versions.front();
  }
  row.completion.insert(row.completion.end(), result.tokens.begin(), result.tokens.end());
  row.sampling_logps.insert(row.sampling_logps.end(), result.logprobs.begin(),
                            result.logprobs.end());
  if (!row.mask.empty()) row.mask.resize(row.completion.size(), 1);
  const bool ends = result.finish != FinishReason::kLength || room(row) == 0;
  if (!ends) return;
  row.finish_reason = std::string(name_of(result.finish));
  row.text = text_of(parts_.tokenizer, parts_.request, row.completion, result.stop_text);
}

}  // namespace bev
