// serve: a model behind the OpenAI HTTP API.
#include <atomic>
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "app/commands/commands.h"
#include "app/generation_options.h"
#include "app/model_source.h"
#include "app/options.h"
#include "app/ranks.h"
#include "app/run_config.h"
#include "app/sentence_config.h"
#include "base/error.h"
#include "base/fields.h"
#include "base/file.h"
#include "base/log.h"
#include "base/output.h"
#include "base/stop_signal.h"
#include "parallel/pipeline/pipeline_layout.h"
#include "plan/flops.h"
#include "serve/api.h"

namespace bev {

namespace {

struct ServeOptions {
  ModelSource model;
  ServedModelOptions served;
  ApiOptions api;
  std::string api_key_file, control_key_file;
  std::int64_t port = 8000;
  double drain_timeout_s = 30;
  bool json = true;  // always
  EngineFlags engine;
  RunConfig run;

  void fields(FieldList& list);
  std::vector<std::string> problems() const;
  void read_keys();

 private:
  void listen_fields(FieldList& list);
  void limit_fields(FieldList& list);
};

// An empty list would open the server to everyone, which an unset variable of a script must not do.
std::string read_keys_of_flag(std::string_view text, std::string& problem) {
  if (trim(text).empty()) problem = "a key is empty";
  return std::string(text);
}

void ServeOptions::listen_fields(FieldList& list) {
  constexpr std::int64_t kMostPort = 65535;
  list.add("host", api.http.host, "address to listen on; 0.0.0.0: all of this machine");
  list.add("port", port, "port to listen on; 0: a free one").min(0).limit(kMostPort);
  list.add("api-key", api.access.api_keys,
           "keys that callers send as 'Authorization: Bearer KEY'; none: everyone may call")
      .reads(read_keys_of_flag);
  list.add("api-key-file", api_key_file, "file with such keys, one on each line");
  list.add("control-key", api.access.control_keys,
           "keys of /pause, /resume, /abort_requests and other control routes; none: they are "
           "closed")
      .reads(read_keys_of_flag);
  list.add("control-key-file", control_key_file, "file with such keys, one on each line");
  list.add("tls-cert", api.http.tls_certificate, "PEM file with the certificate chain, for https");
  list.add("tls-key", api.http.tls_key, "PEM file with its private key");
  list.add("allowed-origins", api.access.origins,
           "origins of web pages that may call, such as https://chat.example.org; *: all");
}

void ServeOptions::limit_fields(FieldList& list) {
  constexpr std::int64_t kMost = 1 << 24;
  list.add("max-model-len", served.max_model_len, "most tokens of a prompt with its answer")
      .min(0)
      .defaults_to("the model's positions, as far as the KV cache has room");
  list.add("max-waiting", api.max_waiting,
           "most requests that wait for the engine; further ones get 429")
      .min(1)
      .limit(kMost);
  list.add("max-connections", api.http.max_connections, "most open connections")
      .min(1)
      .limit(kMost);
  list.add("max-body-bytes", api.http.max_body_bytes, "longest body of a request")
      .min(1)
      .limit(std::int64_t{1} << 40);
  list.add("max-unsent-bytes", api.http.max_unsent_bytes,
           "bytes kept for a client that reads slowly; beyond, it is dropped")
      .min(1)
      .limit(std::int64_t{1} << 40);
  list.add("read-timeout", api.http.read_timeout_s, "seconds for a request to arrive").above(0);
  list.add("drain-timeout", drain_timeout_s,
           "seconds that running requests have after SIGTERM or Ctrl-C")
      .min(0);
}

void ServeOptions::fields(FieldList& list) {
  list.section("serve");
  model.named_adapters = true;
  model.fields(list);
  listen_fields(list);
  list.add("served-model-name", served.names, "names of the model; the first is in answers")
      .defaults_to("the folder's name");
  list.add("chat-template", served.chat_template,
           "file with the chat template, or the name of one of several")
      .defaults_to("that of the model");
  list.add("trust-request-chat-template", served.trust_request_chat_template,
           "take chat templates from requests");
  list.add("reasoning-parser", served.reasoning,
           "markers of a model's reasoning, which answers give apart: think, mistral, seed_oss, "
           "harmony; none: it stays in the text; auto: by the chat template");
  list.add("generation-config", served.generation_config,
           "sampling defaults of generation_config.json");
  list.add("pooling", api.pooling,
           {{"cls", Pooling::kCls}, {"mean", Pooling::kMean}, {"last", Pooling::kLast}},
           "vector of /v1/embeddings: the final hidden state of the first token, the mean of all, "
           "or that of the last")
      .defaults_to("last; of an encoder as 1_Pooling/config.json says, else cls");
  limit_fields(list);
  list.add("json", json, "the ready line is JSON in any case");
  engine.fields(list);
  run.parallel.fields(list);
  run.precision.fields(list);
  run.runtime.fields(list);
}

std::vector<std::string> ServeOptions::problems() const {
  std::vector<std::string> out = model.problems();
  if (api.http.tls_certificate.empty() != api.http.tls_key.empty()) {
    out.push_back("--tls-cert: needs --tls-key, and the other way round");
  }
  std::vector<std::string> parsers = reasoning_parser_names();
  parsers.insert(parsers.begin(), "auto");
  if (std::ranges::find(parsers, served.reasoning) == parsers.end()) {
    out.push_back(
        concat("--reasoning-parser: '", served.reasoning, "' is none of ", join(parsers, ", ")));
  }
  for (const std::string& problem : engine.problems()) out.push_back(problem);
  return out;
}

void read_key_file(const std::string& path, const char* flag, std::vector<std::string>& keys) {
  if (path.empty()) return;
  std::size_t before = keys.size();
  for (const std::string& line : split(read_file(path), '\n')) {
    std::string key(trim(line));
    if (!key.empty() && !key.starts_with('#')) keys.push_back(std::move(key));
  }
  BEV_CHECK(keys.size() > before, ErrorKind::kInput, flag, ": ", path, " holds no key");
}

void ServeOptions::read_keys() {
  read_key_file(api_key_file, "--api-key-file", api.access.api_keys);
  read_key_file(control_key_file, "--control-key-file", api.access.control_keys);
}

// What process 0 serves; other processes have ranks only.
struct Service {
  ServedModel& model;
  Api& api;
};

// Drops what would go to clients, in processes without any.
class NoOutlet : public Outlet {
 public:
  void post(std::unique_ptr<IoTask>) override {}
};

// Drains the server when the process is told to stop.
class DrainOnSignal {
 public:
  DrainOnSignal(const StopSignal& signal, Api& api, double seconds)
      : thread_([this, &signal, &api, seconds] {
          while (!over_ && signal.received() == 0) {
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
          }
          if (!over_) api.drain(seconds);
        }) {}
  ~DrainOnSignal() {
    over_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> over_{false};
  std::thread thread_;
};

// The longest context is what the KV cache holds.
void limit_context(const ServeOptions& wanted, const InferenceEngine& engine, ServedModel& model) {
  std::int64_t room = engine.blocks().total * engine.options().block_tokens;
  if (room >= model.max_model_len) return;
  BEV_CHECK(wanted.served.max_model_len == 0, ErrorKind::kConfig,
            "--max-model-len: ", model.max_model_len, " tokens do not fit into a KV cache of ",
            room, "; give at most that");
  log_warning(concat("--max-model-len: the model has ", model.max_model_len,
                     " positions, the KV cache room for ", room,
                     " tokens; requests may have that"));
  model.max_model_len = room;
}

// engine: null for a model that does not generate.
std::string ready_line(const Service& service, const InferenceEngine* engine) {
  nlohmann::ordered_json line;
  line["event"] = "ready";
  line["url"] = service.api.url();
  line["model"] = service.model.name();
  line["block_tokens"] = engine != nullptr ? engine->options().block_tokens : 0;
  line["total_blocks"] = engine != nullptr ? engine->blocks().total : 0;
  line["max_seqs"] = engine != nullptr ? engine->options().max_sequences : 0;
  line["max_model_len"] = service.model.max_model_len;
  return line.dump() + "\n";
}

// service: null in other processes than the first.
void serve_rank(const RankStart& start, const ServeOptions& wanted, const SourceModel& source,
                const Tokenizer* tokenizer, Service* service, EngineLoop& loop) {
  EngineOptions options = engine_options(wanted.run, start.threads, start.local_rank);
  options.gradients = false;
  Rank rank(start.world, start.kernels, options);
  RankModel model(rank, options);
  if (!options.model.causal) {
    source.load_weights(model);
    model.mesh().world().host().barrier("weights of the server");
    if (start.world.rank() == 0) {
      service->api.set_ready();
      write_stdout(ready_line(*service, nullptr));
    }
    return loop.run_embeddings(model);
  }
  InferenceOptions limits = wanted.engine.options();
  limits.tokenizer = tokenizer;
  limits.chosen_adapters = !wanted.served.adapters.empty();
  limits.wanted_tokens = wanted.engine.max_seqs * wanted.served.max_model_len;
  InferenceEngine engine(model, limits);
  source.load_weights(model);
  model.mesh().world().host().barrier("weights of the server");
  if (start.world.rank() == 0) {
    limit_context(wanted, engine, service->model);
    service->api.set_ready();
    write_stdout(ready_line(*service, &engine));
  }
  loop.run(engine);
}

int run_serve(ServeOptions& wanted, const CommandInput& input) {
  RunConfig& run = wanted.run;
  Options& options = input.options;
  options.add_problems(wanted.problems());
  options.throw_problems();
  wanted.read_keys();
  wanted.api.http.port = static_cast<int>(wanted.port);
  StopSignal signal("the requests that run (--drain-timeout)");
  SourceModel source(wanted.model);
  run.model = source.config();
  options.add_problems(run.parallel.resolve());
  options.throw_problems();
  run.parallel = inference_layout(run.parallel);
  options.add_problems(run.resolve_layout());
  options.throw_problems();
  wanted.served.files = source.files();
  wanted.served.root = !wanted.model.hf_model.empty() ? wanted.model.hf_model : wanted.model.load;
  wanted.api.max_sequences = wanted.engine.max_seqs;
  for (const ModelSource::Adapter& adapter : wanted.model.adapters()) {
    wanted.served.adapters.push_back(adapter.name);
  }
  if (!options.given("pooling") && !run.model.causal) {
    wanted.api.pooling = default_pooling(wanted.served.files, run.model);
  }
  ServedModel served(run.model, wanted.served);
  if (wanted.served.max_model_len == 0) wanted.served.max_model_len = served.max_model_len;
  NoOutlet nobody;
  EngineLoop no_clients(nobody);
  std::optional<Api> api;
  std::optional<Service> service;
  std::optional<DrainOnSignal> drain;
  on_process_0(input.launch, [&] {
    api.emplace(served, wanted.api);
    log_info(concat("listening on ", api->url(), ", loading ", wanted.served.root));
  });
  if (api) {
    service.emplace(Service{served, *api});
    drain.emplace(signal, *api, wanted.drain_timeout_s);
  }
  // A step waits for the weights more than for the arithmetic.
  constexpr double kReadingFlops = 8;
  RuntimeConfig runtime = paying_threads(
      run, input.launch, kReadingFlops * model_flops(run.model, wanted.engine.max_seqs, 1));
  run_ranks(input.launch, run.parallel, runtime, [&](const RankStart& start) {
    serve_rank(start, wanted, source, served.tokenizer.get(), service ? &*service : nullptr,
               api ? api->loop() : no_clients);
  });
  return kExitOk;
}

}  // namespace

const Command kServeCommand = {
    .name = "serve",
    .summary = "serve a model over HTTP with OpenAI's API and a chat page",
    .examples =
        "bevatron serve --hf-model DIR\n"
        "bevatron serve --hf-model DIR --host 0.0.0.0 --port 8000 --api-key-file keys.txt "
        "--tls-cert cert.pem --tls-key key.pem --bf16\n"
        "bevatron serve --load RUN --served-model-name my-model --max-model-len 4096",
    .call = call_of<ServeOptions, run_serve>,
    .usual = "hf-model load host port api-key served-model-name max-model-len max-seqs"};

}  // namespace bev
