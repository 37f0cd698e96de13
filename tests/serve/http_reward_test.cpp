// Rewards by HTTP: whatever a server does, a call ends in time.
#include "serve/http_reward.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <thread>

#include "base/clock.h"
#include "base/error.h"

namespace bev::test {
namespace {

using testing::HasSubstr;

// Answers the n-th connection with the n-th text; "": never.
class Server {
 public:
  explicit Server(std::vector<std::string> answers) : answers_(std::move(answers)) {
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(listener_, 8), 0);
    getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    url_ = concat("http://127.0.0.1:", ntohs(address.sin_port), "/get_reward");
    thread_ = std::thread([this] { serve(); });
  }
  ~Server() {
    stop_ = true;
    thread_.join();
    for (int open : open_) close(open);
    close(listener_);
  }
  const std::string& url() const { return url_; }
  const std::vector<std::string>& requests() const { return requests_; }

 private:
  static bool ready(int file) {
    pollfd wait{file, POLLIN, 0};
    return poll(&wait, 1, 20) > 0;
  }
  void serve() {
    for (std::size_t next = 0; !stop_;) {
      if (!ready(listener_)) continue;
      int file = accept(listener_, nullptr, nullptr);
      open_.push_back(file);
      std::string request;
      char bytes[4096];
      while (!stop_ && request.find("]}") == request.npos) {
        if (!ready(file)) continue;
        ssize_t got = read(file, bytes, sizeof bytes);
        if (got <= 0) break;
        request.append(bytes, static_cast<std::size_t>(got));
      }
      requests_.push_back(request);
      std::string answer = answers_[std::min(next++, answers_.size() - 1)];
      if (answer.empty()) continue;
      std::string status = answer[0] == '{' ? "200 OK" : "500 Internal Server Error";
      std::string text =
          concat("HTTP/1.1 ", status, "\r\nContent-Type: application/json\r\n",
                 "Connection: close\r\nContent-Length: ", answer.size(), "\r\n\r\n", answer);
      // A client whose time is up has gone.
      if (send(file, text.data(), text.size(), MSG_NOSIGNAL) < 0) continue;
      shutdown(file, SHUT_WR);
    }
  }

  std::vector<std::string> answers_, requests_;
  int listener_ = -1;
  std::vector<int> open_;
  std::string url_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

std::vector<RewardRow> rows() {
  std::vector<RewardRow> out(2);
  for (std::size_t i = 0; i < 2; ++i) {
    out[i].prompt = "p";
    out[i].completion = concat("c", i);
    out[i].label = concat("l", i);
    out[i].has_label = true;
  }
  return out;
}

TEST(HttpReward, AsksInTheFormOfOpenRlhf) {
  Server server({R"({"rewards": [0.5, null], "extra_logs": {"length": [1, 2]}})"});
  auto reward = make_http_reward(server.url(), {.timeout_s = 10});
  std::vector<RowReward> values = reward->score(rows());
  EXPECT_EQ(values[0].reward, 0.5);
  ASSERT_EQ(values[0].metrics.size(), 1U);
  EXPECT_EQ(values[0].metrics[0].second, 1);
  EXPECT_THAT(values[1].problem, HasSubstr("gave no reward"));
  ASSERT_EQ(server.requests().size(), 1U);
  EXPECT_THAT(server.requests()[0], HasSubstr("POST /get_reward"));
  EXPECT_THAT(server.requests()[0],
              HasSubstr(R"({"labels":["l0","l1"],"prompts":["p","p"],"query":["pc0","pc1"]})"));
}

TEST(HttpReward, IsAskedAgainAfterAFault) {
  Server server({"error", "{\"no\": 1}", R"({"rewards": [1, 2]})"});
  auto reward = make_http_reward(server.url(), {.timeout_s = 10});
  std::vector<RowReward> values = reward->score(rows());
  EXPECT_EQ(values[0].reward, 1);
  EXPECT_EQ(values[1].reward, 2);
}

TEST(HttpReward, FaultsNeverHang) {
  for (const char* answer : {"", "error", "{\"rewards\": [1]}", "{broken"}) {
    Server server({answer});
    auto reward = make_http_reward(server.url(), {.timeout_s = 0.6});
    double begin = monotonic_seconds();
    std::vector<RowReward> values = reward->score(rows());
    EXPECT_LT(monotonic_seconds() - begin, 10);
    for (const RowReward& value : values) {
      EXPECT_TRUE(std::isnan(value.reward));
      EXPECT_THAT(value.problem, HasSubstr(server.url()));
    }
  }
  auto nobody = make_http_reward("http://127.0.0.1:1/x", {.timeout_s = 0.6});
  EXPECT_TRUE(std::isnan(nobody->score(rows())[0].reward));
  EXPECT_THROW(make_http_reward("http://", {}), Error);
}

}  // namespace
}  // namespace bev::test
