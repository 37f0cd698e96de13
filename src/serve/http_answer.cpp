#include "serve/http_answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <ctime>

#include "base/text.h"

namespace bev {

namespace {
// These are written here.
bool is_ours(std::string_view name) {
  constexpr std::array<std::string_view, 6> kNames = {
      "Content-Length", "Transfer-Encoding", "Connection", "Content-Type", "Date", "Server"};
  return std::ranges::any_of(kNames, [&](auto ours) { return same_ignoring_case(ours, name); });
}
}  // namespace

bool is_sendable(const HttpResponse& response) {
  auto is_valid = [](const HttpHeader& header) {
    return is_token(header.name) && is_header_value(header.value);
  };
  return response.status >= 200 && response.status <= 599 &&
         is_header_value(response.content_type) && std::ranges::all_of(response.headers, is_valid);
}

bool is_bodiless(int status) { return status == 204 || status == 304; }

std::string http_date(std::int64_t unix_seconds) {
  constexpr std::array kDays = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  constexpr std::array kMonths = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                  "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  auto seconds = static_cast<std::time_t>(unix_seconds);
  std::tm day{};
  gmtime_r(&seconds, &day);
  return fmt::format("{}, {:02d} {} {:04d} {:02d}:{:02d}:{:02d} GMT",
                     kDays[static_cast<std::size_t>(day.tm_wday)], day.tm_mday,
                     kMonths[static_cast<std::size_t>(day.tm_mon)], day.tm_year + 1900, day.tm_hour,
                     day.tm_min, day.tm_sec);
}

std::string answer_head(const HttpResponse& response, const AnswerForm& form,
                        std::string_view date) {
  std::string out;
  out.reserve(256);
  auto add = [&](const auto&... parts) { (append_text(out, parts), ...); };
  add(form.http_1_1 ? "HTTP/1.1 " : "HTTP/1.0 ", response.status, " ", reason_of(response.status),
      "\r\nDate: ", date, "\r\nServer: bevatron\r\n");
  if (!is_bodiless(response.status)) {
    if (!response.content_type.empty()) add("Content-Type: ", response.content_type, "\r\n");
    if (form.framing == BodyFraming::kWhole) {
      add("Content-Length: ", response.body.size(), "\r\n");
    } else if (form.framing == BodyFraming::kChunked) {
      add("Transfer-Encoding: chunked\r\n");
    }
  }
  if (!form.keep_alive) {
    add("Connection: close\r\n");
  } else if (!form.http_1_1) {
    add("Connection: keep-alive\r\n");
  }
  for (const HttpHeader& header : response.headers) {
    if (!is_ours(header.name)) add(header.name, ": ", header.value, "\r\n");
  }
  add("\r\n");
  return out;
}

void append_chunk(std::string& out, std::string_view piece) {
  if (piece.empty()) return;  // it would be the last chunk
  fmt::format_to(std::back_inserter(out), "{:x}\r\n", piece.size());
  out.append(piece).append("\r\n");
}

HttpResponse transport_error(int status, std::string_view text) {
  return {.status = status,
          .body = concat(R"({"error":{"message":")", text,
                         R"(","type":"invalid_request_error","param":null,"code":null}})")};
}

}  // namespace bev
