#include "tests/serve/server_rig.h"

#include <chrono>

#include "backend/cpu/cpu_kernels.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "comm/world.h"
#include "infer/generate.h"
#include "parallel/engine.h"
#include "serve/sse.h"
#include "tests/support/layouts.h"

namespace bev::test {

namespace {

constexpr const char* kTemplate =
    "{%- for m in messages %}{%- if m.role == 'raise' or m.content == 'raise' %}"
    "{{ raise_exception('no such word') }}{%- endif %}"
    "{{ '<|im_start|>' + m.role + '\\n' + (m.content or '') + '<|im_end|>\\n' }}{%- endfor %}"
    "{%- for d in documents or [] %}{{ d.text }}{%- endfor %}"
    "{%- if reasoning_effort %}{{ reasoning_effort }}{%- endif %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking %}{{ '<think>\\n' }}{%- endif %}{%- endif %}";

EngineOptions engine_options(const RigOptions& options) {
  EngineOptions out;
  out.model = served_config(options.positions);
  out.parallel.tensor_model_parallel_size = options.tp;
  out.parallel.data_parallel_size = options.dp;
  out.dtype = Dtype::kF32;
  out.gradients = false;
  return out;
}

}  // namespace

ModelConfig served_config(std::int64_t positions) {
  ModelConfig model = tiny_llama();
  model.num_layers = 1;
  model.vocab_size = 424;
  model.max_position_embeddings = positions;
  return model;
}

void write_served_folder(const TempFolder& folder, bool tokenizer, bool chat) {
  folder.write("generation_config.json", R"({"eos_token_id": 0})");
  if (!tokenizer) return;
  Json file = Json::parse(read_file(BEV_SOURCE_DIR "/tests/golden/tokenizers/qwen2.json"));
  int id = 420;
  for (const char* text : {"<|im_start|>", "<|im_end|>", "<think>", "</think>"}) {
    file["added_tokens"].push_back({{"id", id++},
                                    {"content", text},
                                    {"single_word", false},
                                    {"lstrip", false},
                                    {"rstrip", false},
                                    {"normalized", false},
                                    {"special", text[1] == '|'}});
  }
  folder.write("tokenizer.json", file.dump());
  folder.write("tokenizer_config.json", R"({"eos_token": "<|endoftext|>"})");
  if (chat) folder.write("chat_template.jinja", kTemplate);
}

std::vector<RequestResult> run_alone(const RigOptions& options,
                                     const std::vector<Request>& requests) {
  std::vector<RequestResult> results;
  run_thread_ranks(1, {60.0}, [&](World& world) {
    RigOptions one = options;
    one.tp = one.dp = 1;
    Engine engine(world, cpu_kernels(), engine_options(one));
    InferenceEngine inference(engine.model(), options_for(requests, {.block_tokens = 4}));
    results = generate(inference, requests);
  });
  return results;
}

ServerRig::ServerRig(RigOptions options) : options_(std::move(options)) {
  write_served_folder(folder_, options_.tokenizer, options_.chat);
  ServedModelOptions served = options_.served;
  served.files = folder_.path();
  if (served.names.empty()) served.names = {"tiny", "tiny-alias"};
  model_ = std::make_unique<ServedModel>(served_config(options_.positions), served);
  options_.api.http.port = 0;
  options_.api.max_sequences = options_.engine.max_sequences;
  options_.engine.tokenizer = model_->tokenizer.get();
  if (options_.engine.kv_cache_tokens == 0) {
    options_.engine.wanted_tokens = options_.engine.max_sequences * options_.positions;
  }
  api_ = std::make_unique<Api>(*model_, options_.api);
  url_ = api_->url();
  ranks_ = std::thread([this] {
    try {
      run_thread_ranks(options_.tp * options_.dp, {60.0}, [this](World& world) { serve(world); });
    } catch (...) {
      failure_ = std::current_exception();
    }
  });
  if (options_.may_load) return;
  wait_for([&] { return get("/health").status == 200; }, "the server to be ready");
}

void ServerRig::serve(World& world) {
  Engine engine(world, cpu_kernels(), engine_options(options_));
  if (options_.change_weights) options_.change_weights(engine.model());
  InferenceEngine inference(engine.model(), options_.engine);
  while (options_.may_load && !*options_.may_load) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (world.rank() == 0) api_->set_ready();
  api_->loop().run(inference);
  EXPECT_EQ(inference.blocks().used, 0);
}

void ServerRig::drain() {
  if (std::exchange(drained_, true)) return;
  if (options_.may_load) *options_.may_load = true;
  api_->drain(options_.drain_s);
  ranks_.join();
}

ServerRig::~ServerRig() {
  drain();
  try {
    if (failure_) std::rethrow_exception(failure_);
  } catch (const std::exception& error) {
    ADD_FAILURE() << "the engine failed: " << error.what();
  }
}

HttpResponse ServerRig::call(const std::string& method, const std::string& path,
                             const std::string& body, std::vector<HttpHeader> headers) const {
  std::size_t mark = path.find('?');
  HttpRequest request{
      .method = method, .path = path.substr(0, mark), .headers = std::move(headers)};
  if (mark != std::string::npos) request.query = path.substr(mark + 1);
  request.body = body;
  if (!body.empty()) request.headers.push_back({"Content-Type", "application/json"});
  return fetch({.url = url_}, std::move(request));
}

Json ServerRig::post(const std::string& path, const Json& body, int status) const {
  HttpResponse response = call("POST", path, body.dump());
  EXPECT_EQ(response.status, status) << path << " " << body << "\n" << response.body;
  return Json::parse(response.body);
}

std::vector<Json> ServerRig::stream(const std::string& path, const Json& body) const {
  Json asked = body;
  asked["stream"] = true;
  HttpResponse response = call("POST", path, asked.dump());
  EXPECT_EQ(response.status, 200) << response.body;
  EXPECT_EQ(response.content_type, "text/event-stream; charset=utf-8");
  std::vector<Json> events;
  bool done = false;
  SseParser parser;
  parser.add(response.body, [&](std::string_view data) {
    EXPECT_FALSE(done) << "an event after [DONE]";
    done = data == "[DONE]";
    if (!done) events.push_back(Json::parse(data));
  });
  EXPECT_TRUE(done) << response.body;
  return events;
}

double ServerRig::metric(const std::string& name, const std::string& label) const {
  const std::string begin =
      concat("bevatron:", name, "{model_name=\"tiny\"", label.empty() ? "" : ",", label, "} ");
  for (const std::string& line : split(get("/metrics").body, '\n')) {
    if (line.starts_with(begin)) return std::stod(line.substr(begin.size()));
  }
  return -1;
}

void ServerRig::wait_for(const std::function<bool()>& holds, const char* what) {
  const double end = monotonic_seconds() + 20;
  while (!holds()) {
    if (monotonic_seconds() > end) {
      ADD_FAILURE() << "waited in vain for " << what;
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

Json conversation(std::initializer_list<const char*> texts) {
  Json messages = Json::array();
  for (const char* text : texts) {
    messages.push_back(
        {{"role", messages.size() % 2 == 0 ? "user" : "assistant"}, {"content", text}});
  }
  return {{"messages", messages}};
}

}  // namespace bev::test
