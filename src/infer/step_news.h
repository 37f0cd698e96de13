// What a step tells the client of world rank 0 about the requests of one replica.
#pragma once

#include <cstdint>
#include <vector>

#include "infer/request.h"
#include "infer/shared_numbers.h"

namespace bev {

struct TokenNews {
  TokenEvent event;  // without its lists
  std::vector<TopLogprob> top, asked;
};

struct StepNews {
  std::vector<RequestId> started;
  std::vector<TokenNews> tokens;
  std::vector<RequestResult> finished;

  // Calls the sink for all of them: no request is finished before its last token.
  void tell(RequestSink& sink);
};

void pass_top(SharedNumbers& numbers, std::vector<TopLogprob>& list);
void pass_top_lists(SharedNumbers& numbers, std::vector<std::vector<TopLogprob>>& lists);
void pass_news(SharedNumbers& numbers, StepNews& news);

}  // namespace bev
