// The text of an answer's head, and the framing of a body that comes in pieces.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "serve/http.h"

namespace bev {

enum class BodyFraming : std::uint8_t {
  kWhole,       // Content-Length
  kChunked,     // pieces of an HTTP/1.1 stream
  kUntilClose,  // those of an HTTP/1.0 stream
};

struct AnswerForm {
  BodyFraming framing = BodyFraming::kWhole;
  bool http_1_1 = true;
  bool keep_alive = true;
  bool bodiless = false;  // answers HEAD
};

// May the status and all headers be sent? A line break in a value would begin another header.
bool is_sendable(const HttpResponse& response);
// Does an answer of this status never have a body?
bool is_bodiless(int status);

// "Wed, 21 Oct 2015 07:28:00 GMT", of seconds since 1970.
std::string http_date(std::int64_t unix_seconds);

// Status line, headers and empty line.
std::string answer_head(const HttpResponse& response, const AnswerForm& form,
                        std::string_view date);
void append_chunk(std::string& out, std::string_view piece);
inline constexpr std::string_view kLastChunk = "0\r\n\r\n";

// {"error": {...}} in OpenAI's shape, of an error of the transport; the text needs no escapes.
HttpResponse transport_error(int status, std::string_view text);

}  // namespace bev
