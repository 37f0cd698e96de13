// What the routes of the API answer, but for those of worker threads.
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "serve/api_error.h"
#include "serve/api_state.h"
#include "serve/body.h"
#include "serve/json_text.h"
#include "serve/page.h"

namespace bev {

namespace {

using Call = std::shared_ptr<ApiCall>;

std::string query_value(std::string_view query, std::string_view name) {
  for (const std::string& pair : split(query, '&')) {
    if (pair.starts_with(concat(name, "="))) return pair.substr(name.size() + 1);
  }
  return {};
}

// Answers once the engine has applied a command.
class ControlAnswer : public EngineClient {
 public:
  ControlAnswer(Call call, std::string body) : call_(std::move(call)), body_(std::move(body)) {}
  void on_applied() override { call_->respond({.body = body_}); }
  void on_failed(std::int64_t, const Error& error) override {
    call_->respond(ApiError(500, error.what()).response());
  }

 private:
  Call call_;
  std::string body_;
};

}  // namespace

void Api::State::page(const Call& call) {
  for (const PageFile& file : page_files()) {
    if (file.path != call->request().path) continue;
    return call->respond(
        {.content_type = std::string(file.content_type),
         .headers = {{"Content-Security-Policy", "default-src 'self'; img-src 'self' data:"},
                     {"X-Content-Type-Options", "nosniff"},
                     {"X-Frame-Options", "DENY"},
                     {"Cache-Control", "no-cache"}},
         .body = std::string(file.content)});
  }
}

void Api::State::health(const Call& call) {
  static constexpr std::string_view kStates[] = {"loading", "ok", "paused", "draining"};
  ApiPhase now = phase;
  bool failed = loop.failed(), ready = now == ApiPhase::kReady && !failed;
  bool alive = ready || (now == ApiPhase::kPaused && !failed);
  JsonText out;
  out.begin_object();
  out.add("status", failed ? "failed" : kStates[static_cast<std::size_t>(now)]);
  out.add("service", "bevatron").add("ready", ready).end_object();
  call->respond({.status = alive ? 200 : 503, .body = out.take()});
}

std::string Api::State::card() const {
  JsonText out;
  out.begin_list();
  std::vector<std::string> names = model.names;
  names.insert(names.end(), model.adapters.begin(), model.adapters.end());
  for (const std::string& name : names) {
    out.begin_object().add("id", name).add("object", "model").add("created", model.created);
    out.add("owned_by", "bevatron").add("root", model.root);
    if (model.adapter_of(name) < 0) {
      out.add_null("parent");
    } else {
      out.add("parent", model.name());
    }
    out.add("max_model_len", model.max_model_len);
    out.add("vocab_size", model.config.vocab_size).end_object();
  }
  return out.end_list().take();
}

void Api::State::models(const Call& call) {
  check_loaded();
  JsonText out;
  out.begin_object().add("object", "list").add_json("data", card()).end_object();
  call->respond({.body = out.take()});
}

void Api::State::model_card(const Call& call) {
  check_loaded();
  const std::string wanted = call->request().path.substr(std::string_view("/v1/models/").size());
  if (!model.answers_to(wanted)) {
    throw ApiError(404, concat("The model '", wanted, "' does not exist"), "model",
                   "model_not_found");
  }
  JsonText out;
  out.begin_object().add("id", wanted).add("object", "model").add("created", model.created);
  out.add("owned_by", "bevatron").add("root", model.root).add_null("parent");
  out.add("max_model_len", model.max_model_len);
  out.add("vocab_size", model.config.vocab_size).end_object();
  call->respond({.body = out.take()});
}

void Api::State::metrics_text(const Call& call) {
  call->respond({.content_type = "text/plain; version=0.0.4; charset=utf-8",
                 .body = metrics.text(loop.snapshot())});
}

void Api::State::version(const Call& call) {
  JsonText out;
  out.begin_object().add("version", BEV_VERSION).end_object();
  call->respond({.body = out.take()});
}

// mode=abort (the default) cancels what is under way, wait lets it end, keep holds it until resume.
void Api::State::pause(const Call& call) {
  if (phase != ApiPhase::kReady && phase != ApiPhase::kPaused) return check_serving();
  std::string mode = query_value(call->request().query, "mode");
  if (mode.empty() && !call->request().body.empty()) {
    mode = Body(call->request().body).text("mode").value_or("");
  }
  if (mode.empty()) mode = "abort";
  if (mode != "abort" && mode != "wait" && mode != "keep") {
    throw ApiError(400, concat("mode: '", mode, "' is none of abort, wait, keep"), "mode");
  }
  phase = ApiPhase::kPaused;
  if (mode == "abort") {
    for (const Call& each : registry.all()) each->cancel();
  }
  loop.pause(mode != "keep", std::make_shared<ControlAnswer>(call, R"({"status":"paused"})"));
}

void Api::State::resume(const Call& call) {
  if (phase != ApiPhase::kReady && phase != ApiPhase::kPaused) return check_serving();
  phase = ApiPhase::kReady;
  loop.resume(std::make_shared<ControlAnswer>(call, R"({"status":"resumed"})"));
}

void Api::State::is_paused(const Call& call) {
  JsonText out;
  out.begin_object().add("is_paused", phase == ApiPhase::kPaused).end_object();
  call->respond({.body = out.take()});
}

void Api::State::reset_cache(const Call& call) {
  loop.reset_prefix_cache(std::make_shared<ControlAnswer>(call, R"({"status":"ok"})"));
}

void Api::State::weight_info(const Call& call) {
  JsonText out;
  out.begin_object().add("model", model.name()).add("root", model.root);
  out.add("weights_version", loop.snapshot().weights_version).end_object();
  call->respond({.body = out.take()});
}

// Those whose X-Request-Id is in "request_ids"; all without a body.
void Api::State::abort_requests(const Call& call) {
  std::vector<std::string> ids;
  if (!call->request().body.empty()) ids = Body(call->request().body).texts("request_ids");
  std::int64_t aborted = 0;
  for (const Call& each : registry.all()) {
    bool meant = ids.empty() || std::ranges::find(ids, each->id()) != ids.end();
    if (!meant || each == call) continue;
    each->cancel();
    ++aborted;
  }
  JsonText out;
  out.begin_object().add("aborted", aborted).end_object();
  call->respond({.body = out.take()});
}

}  // namespace bev
