#include "serve/sse.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/text.h"

namespace bev {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using Events = std::vector<std::string>;

Events events_of(std::initializer_list<std::string_view> pieces) {
  SseParser parser;
  Events events;
  for (std::string_view piece : pieces) {
    parser.add(piece, [&](std::string_view data) { events.emplace_back(data); });
  }
  return events;
}

TEST(Sse, EventHasOneDataLineAndAnEmptyOne) {
  EXPECT_EQ(sse_event(R"({"a":1})"), "data: {\"a\":1}\n\n");
  EXPECT_THAT(events_of({sse_event("x"), sse_event("[DONE]")}), ElementsAre("x", "[DONE]"));
}

TEST(Sse, ReadsFieldsAsTheStandardSays) {
  EXPECT_THAT(events_of({"data:no space\n\ndata:  two\n\n"}), ElementsAre("no space", " two"));
  EXPECT_THAT(events_of({"data: a\ndata: b\ndata\n\n"}), ElementsAre("a\nb\n"));
  EXPECT_THAT(events_of({"data\n\ndata:\n\n"}), ElementsAre("", ""));
  EXPECT_THAT(events_of({": a comment\nevent: x\nid: 1\nretry: 5\n\n"}), IsEmpty());
  EXPECT_THAT(events_of({"database: x\nDATA: y\n data: z\n\n"}), IsEmpty());
  EXPECT_THAT(events_of({"event: x\ndata: a:b\n\n"}), ElementsAre("a:b"));
  EXPECT_THAT(events_of({"\n\n\ndata: x\n\n\n\n"}), ElementsAre("x"));
  EXPECT_THAT(events_of({"data: its end is missing\n"}), IsEmpty());
  EXPECT_THAT(events_of({"\xEF\xBB\xBF"
                         "data: marked\n\n"}),
              ElementsAre("marked"));
}

TEST(Sse, EverySplitOfEveryLineEndGivesTheSameEvents) {
  for (std::string_view end : {"\n", "\r", "\r\n"}) {
    std::string text = "\xEF\xBB\xBF";
    for (std::string_view line : {"data: first", "", ": note", "data: a", "data: b", "", "",
                                  "data: \xC3\xA9", "", "data", ""}) {
      text.append(line).append(end);
    }
    for (std::size_t i = 0; i <= text.size(); ++i) {
      for (std::size_t j = i; j <= text.size(); ++j) {
        std::string_view all = text;
        ASSERT_THAT(events_of({all.substr(0, i), all.substr(i, j - i), all.substr(j)}),
                    ElementsAre("first", "a\nb", "\xC3\xA9", ""))
            << "cut at " << i << " and " << j;
      }
    }
  }
}

}  // namespace
}  // namespace bev
