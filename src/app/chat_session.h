// A conversation with a model, turn by turn: reads what the user says from standard input, writes
// the answers to standard output as they come, and keeps the history.
#pragma once

#include <cstdint>
#include <string>

#include "chat/chat_template.h"
#include "comm/group.h"
#include "infer/engine.h"
#include "models/config.h"
#include "tokenizer/tokenizer.h"

namespace bev {

class Interrupt;

struct ChatSetup {
  const Tokenizer& tokenizer;
  const ChatTemplate& chat_template;
  const ModelConfig& model;
  Interrupt& interrupt;
  Request request;                 // without a prompt; max_new_tokens: see answer_tokens
  bool length_given = false;       // by the user
  std::string system_prompt = {};  // "": none
  bool show_special_tokens = false;
};

// Most tokens of an answer to a prompt of this length: `wanted` if the user gave it, as far as the
// model has positions; else at most 1024 within the positions that it was trained for. 0 or less
// if none are left.
std::int64_t answer_tokens(const ModelConfig& model, std::int64_t prompt_tokens,
                           std::int64_t wanted, bool given);

// Until the input ends or the user leaves. Ctrl-C ends an answer, which stays as far as it came.
// Collective over `world`; rank 0 reads and writes.
void hold_conversation(InferenceEngine& engine, Group& world, const ChatSetup& setup);

}  // namespace bev
