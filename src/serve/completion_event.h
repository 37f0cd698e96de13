// What a load test reads in the answers of /v1/completions. Events of tokens come by the thousand:
// they are searched for what is counted; only others are parsed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace bev {

struct CompletionUsage {
  std::int64_t completion_tokens = 0, cached_tokens = 0;
};

struct CompletionEvent {
  // By "token_ids"; of a server that does not send them, 1 for each event of a choice.
  std::int64_t tokens = 0;
  std::optional<CompletionUsage> usage;
  std::string error;  // why the answer fails; "": it does not
};

// The data of an event, but for [DONE], or the body of an answer that is no stream.
CompletionEvent read_completion_event(std::string_view json);

// The message of an answer with this status and body: "HTTP 429: the queue is full".
std::string http_failure(int status, std::string_view body);

}  // namespace bev
