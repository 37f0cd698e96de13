// What worker threads do with a call: read its body, tokenize, and submit or answer. ApiError for
// what is wrong with it.
#pragma once

#include <cstdint>
#include <memory>

#include "infer/embedding.h"
#include "serve/answer.h"
#include "serve/api_call.h"

namespace bev {

enum class GenerationApi : std::uint8_t { kCompletion, kChat, kMegatron };

// seed: for a request without one.
void start_generation(GenerationApi api, const Answer::Server& server,
                      const std::shared_ptr<ApiCall>& call, std::uint64_t seed);
void start_embeddings(const Answer::Server& server, const std::shared_ptr<ApiCall>& call,
                      Pooling pooling);
void answer_tokenize(const ServedModel& model, ApiCall& call);
void answer_detokenize(const ServedModel& model, ApiCall& call);

}  // namespace bev
