// What a client asks of /v1/completions, /v1/chat/completions or Megatron's /api: the requests for
// the engine, and the form of the answer.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "infer/request.h"
#include "serve/body.h"
#include "serve/served_model.h"

namespace bev {

struct AskPrompt {
  std::vector<std::int32_t> ids;
  std::string text;  // for echo; "" if it was given as ids and there is no tokenizer
  std::int64_t max_new_tokens = 0;
};

struct Ask {
  bool chat = false;
  std::string id;  // of the client's choice; "": ours
  std::vector<AskPrompt> prompts;
  Request request;      // for each of them; best_of is its n
  bool seeded = false;  // the client gave a seed
  bool stream = false;
  bool include_usage = false, continuous_usage = false;
  std::int64_t stream_interval = 1;  // tokens between events
  std::int64_t n = 1;                // choices for each prompt
  bool echo = false;
  bool logprobs = false;              // with request.top_logprobs alternatives
  std::int64_t prompt_logprobs = -1;  // alternatives in vLLM's field; -1: not wanted
  bool include_stop = false;
  bool skip_special_tokens = true;
  bool return_token_ids = false;
  bool tokens_as_ids = false;  // tokens are written as "token_id:17"
  bool include_reasoning = true;
  std::string echoed;      // chat: begins the content
  bool continues = false;  // chat: goes on in the last message

  // Requests that the engine gets.
  std::int64_t choices() const { return std::ssize(prompts) * n; }
};

// ApiError for what is wrong.
Ask parse_completion(const ServedModel& model, const Body& body);
Ask parse_chat(const ServedModel& model, const Body& body);
Ask parse_megatron(const ServedModel& model, const Body& body);

// The fields that completions and chat share, but for those about length.
void parse_shared(const ServedModel& model, const Body& body, Ask& ask);
// Cuts prompts as truncate_prompt_tokens says, and gives each its max_new_tokens: `wanted`, or -1
// for what the context has room for. ApiError with both numbers if there is too little.
void limit_lengths(const ServedModel& model, const Body& body, std::int64_t wanted, Ask& ask);
// 404 for another model's name.
void check_model(const ServedModel& model, const Body& body);
// 400 naming the field that needs one.
const Tokenizer& need_tokenizer(const ServedModel& model, const char* field);
std::vector<std::int32_t> encode_text(const Tokenizer& tokenizer, std::string_view text,
                                      bool special_tokens);

// The conversation of a body as the model reads it, and how its answer begins.
struct ChatPrompt {
  AskPrompt prompt;
  std::string continued;  // what the answer goes on with, for continue_final_message
};
ChatPrompt chat_prompt(const ServedModel& model, const Body& body);

}  // namespace bev
