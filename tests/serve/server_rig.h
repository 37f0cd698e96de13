// A server with a tiny model in this process, and calls to it.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "infer/engine.h"
#include "serve/api.h"
#include "serve/http_client.h"
#include "tests/support/temp_folder.h"

namespace bev::test {

using Json = nlohmann::ordered_json;

struct RigOptions {
  int tp = 1, dp = 1;
  InferenceOptions engine{.max_sequences = 8, .block_tokens = 4};
  ApiOptions api{};
  ServedModelOptions served{};
  bool tokenizer = true, chat = true;
  std::int64_t positions = 128;
  double drain_s = 5;
  // On each rank, before the engine serves.
  std::function<void(RankModel&)> change_weights = {};
  // Holds the engine back; the server answers 503 until then.
  std::shared_ptr<std::atomic<bool>> may_load = {};
};

// The model's folder: tokenizer of about 420 tokens, ChatML template.
void write_served_folder(const TempFolder& folder, bool tokenizer, bool chat);
ModelConfig served_config(std::int64_t positions);
// What the engine alone gives for the requests.
std::vector<RequestResult> run_alone(const RigOptions& options,
                                     const std::vector<Request>& requests);

class ServerRig {
 public:
  explicit ServerRig(RigOptions options = {});
  ~ServerRig();  // drains

  Api& api() { return *api_; }
  const ServedModel& model() const { return *model_; }
  const std::string& url() const { return url_; }
  EngineSnapshot snapshot() { return api_->loop().snapshot(); }
  void drain();

  HttpResponse call(const std::string& method, const std::string& path,
                    const std::string& body = {}, std::vector<HttpHeader> headers = {}) const;
  HttpResponse get(const std::string& path) const { return call("GET", path); }
  // The answer to a JSON body, which must have this status.
  Json post(const std::string& path, const Json& body, int status = 200) const;
  Json completion(const Json& body, int status = 200) const {
    return post("/v1/completions", body, status);
  }
  Json chat(const Json& body, int status = 200) const {
    return post("/v1/chat/completions", body, status);
  }
  // The events of a stream, without [DONE], which must be there.
  std::vector<Json> stream(const std::string& path, const Json& body) const;
  // A sample of /metrics, by name and labels besides model_name; -1: not there.
  double metric(const std::string& name, const std::string& label = {}) const;
  // Waits until the condition holds; a failure after some seconds.
  static void wait_for(const std::function<bool()>& holds, const char* what);

 private:
  void serve(World& world);

  RigOptions options_;
  TempFolder folder_;
  std::unique_ptr<ServedModel> model_;
  std::unique_ptr<Api> api_;
  std::string url_;
  bool drained_ = false;
  std::exception_ptr failure_;
  std::thread ranks_;
};

// {"messages": [...]} with these texts by turns of user and assistant.
Json conversation(std::initializer_list<const char*> texts);

}  // namespace bev::test
