#include "serve/http_reward.h"

#include <poll.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/error.h"
#include "base/json_check.h"
#include "serve/http_client.h"

namespace bev {

namespace {

using Json = nlohmann::json;

constexpr int kMostTries = 5;

// The whole answer of one request.
class Answer final : public HttpClientSink {
 public:
  void on_head(ExchangeId, const HttpResponse& head) override { response = head; }
  void on_data(ExchangeId, std::string_view bytes) override { response.body.append(bytes); }
  void on_done(ExchangeId, const std::string& why) override { error = why; }

  HttpResponse response;
  std::string error;
};

// The body of the answer of a server, or "" and why there is none.
std::string ask(const std::string& url, const std::string& body, double until, std::string& why) {
  Answer answer;
  HttpClientOptions options{.url = url};
  options.connect_timeout_s = std::min(5.0, std::max(0.1, until - monotonic_seconds()));
  HttpClient client(options, answer);
  client.start({.method = "POST", .headers = {{"Content-Type", "application/json"}}, .body = body});
  while (client.in_flight() > 0 && monotonic_seconds() < until) client.run_until(until);
  bool ended = client.in_flight() == 0;
  if (!ended) {
    why = "no answer in time";
  } else if (!answer.error.empty()) {
    why = answer.error;
  } else if (answer.response.status != 200) {
    why = concat("status ", answer.response.status);
  } else {
    return std::move(answer.response.body);
  }
  return "";
}

class HttpReward final : public Reward {
 public:
  HttpReward(const std::string& urls, const RewardOptions& options)
      : urls_(split(urls, ',')), options_(options) {
    Answer nothing;
    for (const std::string& url : urls_) HttpClient({.url = url}, nothing);
  }

  std::string name() const override { return "http"; }
  bool needs_label() const override { return false; }

  std::vector<RowReward> score(std::span<const RewardRow> rows) override {
    std::vector<RowReward> values(rows.size());
    const double until = monotonic_seconds() + options_.timeout_s;
    const std::size_t parts = std::min(urls_.size(), rows.size());
    for (std::size_t part = 0; part < parts; ++part) {
      std::size_t begin = rows.size() * part / parts, end = rows.size() * (part + 1) / parts;
      score_part(part, rows.subspan(begin, end - begin),
                 std::span(values).subspan(begin, end - begin), until);
    }
    return values;
  }

 private:
  static std::string body_of(std::span<const RewardRow> rows) {
    Json query = Json::array(), prompts = Json::array(), labels = Json::array();
    for (const RewardRow& row : rows) {
      query.push_back(row.prompt + row.completion);
      prompts.push_back(row.prompt);
      labels.push_back(row.has_label ? Json(row.label) : Json());
    }
    Json body{{"query", query}, {"prompts", prompts}, {"labels", labels}};
    return body.dump(-1, ' ', false, Json::error_handler_t::replace);
  }

  void score_part(std::size_t first, std::span<const RewardRow> rows, std::span<RowReward> values,
                  double until) const {
    const std::string body = body_of(rows);
    std::string why = "no answer in time";
    for (std::size_t attempt = 0; attempt < kMostTries && monotonic_seconds() < until; ++attempt) {
      const std::string& url = urls_[(first + attempt) % urls_.size()];
      std::string text = ask(url, body, until, why);
      if (!text.empty() && take(text, values, why)) return;
      why = concat(url, ": ", why);
      double pause =
          std::min(0.1 * std::pow(2.0, static_cast<double>(attempt)), until - monotonic_seconds());
      if (pause > 0) poll(nullptr, 0, static_cast<int>(pause * 1000));
    }
    for (RowReward& value : values) value.problem = why;
  }

  // False, and why, if the text is no answer to so many rows.
  static bool take(const std::string& text, std::span<RowReward> values, std::string& why) {
    Json answer = Json::parse(text, nullptr, false);
    bool fits = answer.is_object() && answer.contains("rewards") && answer["rewards"].is_array() &&
                answer["rewards"].size() == values.size();
    if (!fits) {
      why = concat("no \"rewards\" of ", values.size(), " rows in ", quote(text));
      return false;
    }
    for (std::size_t i = 0; i < values.size(); ++i) {
      const Json& reward = answer["rewards"][i];
      if (reward.is_number()) {
        values[i].reward = reward.get<double>();
      } else {
        values[i].problem = "the server gave no reward";
      }
    }
    if (!answer.contains("extra_logs") || !answer["extra_logs"].is_object()) return true;
    for (const auto& [name, list] : answer["extra_logs"].items()) {
      if (!list.is_array() || list.size() != values.size()) continue;
      for (std::size_t i = 0; i < values.size(); ++i) {
        if (list[i].is_number()) values[i].metrics.emplace_back(name, list[i].get<double>());
      }
    }
    return true;
  }

  std::vector<std::string> urls_;
  RewardOptions options_;
};

}  // namespace

std::unique_ptr<Reward> make_http_reward(const std::string& urls, const RewardOptions& options) {
  return std::make_unique<HttpReward>(urls, options);
}

}  // namespace bev
