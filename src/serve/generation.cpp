#include "serve/generation.h"

#include <bit>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "serve/access.h"
#include "serve/api_error.h"
#include "serve/json_text.h"

namespace bev {

namespace {

Ask parse(GenerationApi api, const ServedModel& model, const Body& body) {
  switch (api) {
    case GenerationApi::kCompletion:
      return parse_completion(model, body);
    case GenerationApi::kChat:
      return parse_chat(model, body);
    case GenerationApi::kMegatron:
      return parse_megatron(model, body);
  }
  return {};
}

std::shared_ptr<Answer> make_answer(GenerationApi api, const Answer::Server& server,
                                    std::shared_ptr<ApiCall> call, Ask ask) {
  switch (api) {
    case GenerationApi::kCompletion:
      return make_completion_answer(server, std::move(call), std::move(ask));
    case GenerationApi::kChat:
      return make_chat_answer(server, std::move(call), std::move(ask));
    case GenerationApi::kMegatron:
      return make_megatron_answer(server, std::move(call), std::move(ask));
  }
  return nullptr;
}

}  // namespace

void start_generation(GenerationApi api, const Answer::Server& server,
                      const std::shared_ptr<ApiCall>& call, std::uint64_t seed) {
  Ask ask = parse(api, server.model, Body(call->request().body));
  const char* prefix = ask.chat ? "chatcmpl-" : "cmpl-";
  ask.id = prefix + (ask.id.empty() ? call->id() : ask.id);
  if (!ask.seeded) ask.request.sampling.seed = seed;
  std::vector<Request> requests;
  for (const AskPrompt& prompt : ask.prompts) {
    Request& request = requests.emplace_back(ask.request);
    request.prompt = prompt.ids;
    request.max_new_tokens = prompt.max_new_tokens;
    request.stream = std::ssize(requests) - 1;
    check_request(server.model.config, request, concat("prompt ", request.stream));
    server.metrics.params(ask.n, prompt.max_new_tokens);
  }
  std::shared_ptr<Answer> answer = make_answer(api, server, call, std::move(ask));
  for (std::size_t i = 0; i < requests.size(); ++i) {
    call->submit(std::move(requests[i]), answer, static_cast<std::int64_t>(i));
  }
}

namespace {

class EmbeddingAnswer : public EngineClient {
 public:
  EmbeddingAnswer(const ServedModel& model, std::shared_ptr<ApiCall> call, bool as_base64,
                  std::int64_t tokens)
      : model_(model), call_(std::move(call)), as_base64_(as_base64), tokens_(tokens) {}

  void on_embeddings(std::vector<std::vector<double>> rows) override {
    call_->metrics().ended(false);
    JsonText out;
    out.begin_object().add("object", "list").key("data").begin_list();
    for (std::size_t i = 0; i < rows.size(); ++i) {
      out.begin_object().add("object", "embedding").add("index", i).key("embedding");
      as_base64_ ? out.text(base64_of(rows[i])) : numbers(out, rows[i]);
      out.end_object();
    }
    out.end_list().add("model", model_.name()).key("usage").begin_object();
    out.add("prompt_tokens", tokens_).add("total_tokens", tokens_).end_object();
    call_->respond({.body = out.end_object().take()});
  }
  void on_failed(std::int64_t, const Error& error) override {
    call_->metrics().ended(false);
    call_->respond(ApiError(500, error.what()).response());
  }

 private:
  static JsonText& numbers(JsonText& out, const std::vector<double>& row) {
    out.begin_list();
    for (double value : row) out.number(value);
    return out.end_list();
  }
  static std::string base64_of(const std::vector<double>& row) {
    static_assert(std::endian::native == std::endian::little);
    std::vector<float> narrow(row.begin(), row.end());
    return base64({reinterpret_cast<const char*>(narrow.data()), narrow.size() * sizeof(float)});
  }

  const ServedModel& model_;
  std::shared_ptr<ApiCall> call_;
  bool as_base64_;
  std::int64_t tokens_;
};

// A text, texts, ids, or lists of ids.
std::vector<std::vector<std::int32_t>> parse_inputs(const ServedModel& model, const Body& body) {
  constexpr std::size_t kMost = 2048;
  const jinja::Value* input = body.find("input");
  if (input == nullptr) body.fail("input", "is missing");
  std::vector<std::vector<std::int32_t>> rows;
  auto add = [&](const jinja::Value& each) {
    if (each.is_string()) {
      rows.push_back(encode_text(need_tokenizer(model, "input"), *each.string(),
                                 body.flag("add_special_tokens", true)));
    } else {
      rows.push_back(token_ids(each, model.config.vocab_size, "input"));
    }
  };
  bool list = input->is_sequence() && !input->sequence()->items.empty() &&
              !input->sequence()->items.front().is_int();
  if (list) {
    for (const jinja::Value& each : input->sequence()->items) add(each);
  } else {
    add(*input);
  }
  if (rows.size() > kMost) body.fail("input", concat(rows.size(), " texts; at most ", kMost));
  for (const std::vector<std::int32_t>& row : rows) {
    if (row.empty()) body.fail("input", "a text is empty");
    if (std::ssize(row) > model.max_model_len) {
      throw ApiError(400,
                     concat("This model's maximum context length is ", model.max_model_len,
                            " tokens, but the input has ", row.size(), " tokens."),
                     "input", "context_length_exceeded");
    }
  }
  return rows;
}

}  // namespace

void start_embeddings(const Answer::Server& server, const std::shared_ptr<ApiCall>& call,
                      Pooling pooling) {
  const ServedModel& model = server.model;
  Body body(call->request().body);
  check_model(model, body);
  if (model.adapter_of(body.text("model").value_or("")) >= 0) {
    body.fail("model", concat("embeddings are those of ", model.name(), " without an adapter"));
  }
  std::string format = body.text("encoding_format").value_or("float");
  if (format != "float" && format != "base64") {
    body.fail("encoding_format", concat("'", format, "' is neither float nor base64"));
  }
  const std::int64_t width = model.config.hidden_size;
  if (body.integer("dimensions", 1, width).value_or(width) != width) {
    body.fail("dimensions", concat("vectors of this model have ", width, " numbers"));
  }
  std::vector<std::vector<std::int32_t>> rows = parse_inputs(model, body);
  std::int64_t tokens = 0;
  for (const std::vector<std::int32_t>& row : rows) tokens += std::ssize(row);
  call->metrics().accepted();
  call->loop().embed(std::move(rows),
                     {.pooling = pooling, .normalize = body.flag("normalize", true)},
                     std::make_shared<EmbeddingAnswer>(model, call, format == "base64", tokens));
}

void answer_tokenize(const ServedModel& model, ApiCall& call) {
  Body body(call.request().body);
  check_model(model, body);
  std::vector<std::int32_t> ids;
  if (body.has("messages")) {
    ids = chat_prompt(model, body).prompt.ids;
  } else {
    std::optional<std::string> prompt = body.text("prompt");
    if (!prompt) body.fail("prompt", "is missing; give it or messages");
    ids = encode_text(need_tokenizer(model, "prompt"), *prompt,
                      body.flag("add_special_tokens", true));
  }
  JsonText out;
  out.begin_object().add("count", ids.size()).add("max_model_len", model.max_model_len);
  out.add_json("tokens", json_integers(ids)).key("token_strs");
  if (body.flag("return_token_strs", false)) {
    out.begin_list();
    for (std::int32_t id : ids) out.text(model.tokenizer->token_text(id).value_or(""));
    out.end_list();
  } else {
    out.null();
  }
  call.respond({.body = out.end_object().take()});
}

void answer_detokenize(const ServedModel& model, ApiCall& call) {
  Body body(call.request().body);
  check_model(model, body);
  const Tokenizer& tokenizer = need_tokenizer(model, "tokens");
  if (!body.has("tokens")) body.fail("tokens", "is missing");
  std::string text = tokenizer.decode(body.ids("tokens", model.config.vocab_size));
  JsonText out;
  out.begin_object().add("prompt", replace_invalid_utf8(text));
  call.respond({.body = out.end_object().take()});
}

}  // namespace bev
