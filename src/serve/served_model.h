// What a server serves: the model's names, its texts, and the defaults of requests.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "chat/chat_template.h"
#include "infer/embedding.h"
#include "infer/sampler.h"
#include "models/config.h"
#include "serve/reasoning.h"
#include "tokenizer/tokenizer.h"

namespace bev {

struct ServedModelOptions {
  std::string files;                  // folder with tokenizer, template and settings; "": none
  std::vector<std::string> names;     // the first is written into answers; empty: the folder's name
  std::vector<std::string> adapters;  // further names, each of one of the model's adapters
  std::string root;                   // where the model comes from
  std::string chat_template;          // file, or the name of one of several
  std::string reasoning = "auto";     // --reasoning-parser
  bool generation_config = true;      // sampling defaults of generation_config.json
  std::int64_t max_model_len = 0;     // 0: the model's positions
  bool trust_request_chat_template = false;
};

struct ServedModel {
  // Error(kInput) for files that cannot be read; a tokenizer and a template may be missing.
  ServedModel(const ModelConfig& model, const ServedModelOptions& options);

  const std::string& name() const { return names.front(); }
  // The name of what an adapter's number (-1: none) makes of the model.
  const std::string& name(std::int64_t adapter) const {
    return adapter < 0 ? name() : adapters.at(static_cast<std::size_t>(adapter));
  }
  // Whether a request for this name is one for this model or one of its adapters; "" is.
  bool answers_to(std::string_view wanted) const;
  // The number of the adapter of this name; -1: it is none.
  std::int64_t adapter_of(std::string_view wanted) const;

  ModelConfig config;
  std::vector<std::string> names, adapters;
  std::string root;
  std::int64_t created = 0;  // seconds since 1970
  std::int64_t max_model_len = 0;
  std::unique_ptr<Tokenizer> tokenizer;       // null: ids only
  std::optional<ChatTemplate> chat_template;  // nullopt: no chat
  std::vector<std::int32_t> end_tokens, chat_end_tokens;
  const ReasoningMarkers* reasoning = nullptr;  // null: answers are not split
  bool trust_request_chat_template = false;     // requests may bring a template of their own
  SamplingOptions sampling{.temperature = 1};
};

}  // namespace bev
