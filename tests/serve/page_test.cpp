// The embedded chat page: complete, small, and without anything that its Content-Security-Policy
// would refuse.
#include "serve/page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <string>

#include "base/file.h"

namespace bev {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string content_of(std::string_view path) {
  for (const PageFile& file : page_files()) {
    if (file.path == path) return std::string(file.content);
  }
  ADD_FAILURE() << "no file at " << path;
  return "";
}

TEST(Page, FilesAreThoseOfTheSourceTree) {
  const std::string folder = std::string(BEV_SOURCE_DIR) + "/src/serve/page/";
  EXPECT_EQ(page_files().size(), list_directory(folder).size());
  EXPECT_EQ(content_of("/"), read_file(folder + "index.html"));
  EXPECT_EQ(content_of("/page.css"), read_file(folder + "page.css"));
  EXPECT_EQ(content_of("/page.js"), read_file(folder + "page.js"));
}

TEST(Page, FilesSayWhatTheyAre) {
  for (const PageFile& file : page_files()) {
    std::string kind = file.path == "/"           ? "text/html"
                       : file.path == "/page.css" ? "text/css"
                                                  : "text/javascript";
    EXPECT_EQ(file.content_type, kind + "; charset=utf-8") << file.path;
  }
}

TEST(Page, HasAtMost60KiB) {
  std::size_t bytes = 0;
  for (const PageFile& file : page_files()) bytes += file.content.size();
  EXPECT_LE(bytes, 60u << 10);
}

TEST(Page, LoadsNothingFromElsewhere) {
  for (const PageFile& file : page_files()) {
    std::string content(file.content);
    EXPECT_THAT(content, Not(HasSubstr("http://"))) << file.path;
    EXPECT_THAT(content, Not(HasSubstr("https://"))) << file.path;
    EXPECT_FALSE(
        std::regex_search(content, std::regex(R"((src|href)="//|url\(|@import|@font-face)")))
        << file.path;
  }
  const std::string html = content_of("/");
  EXPECT_THAT(html, HasSubstr(R"(<link rel="stylesheet" href="page.css">)"));
  EXPECT_THAT(html, HasSubstr(R"(<script src="page.js")"));
}

TEST(Page, HasNothingInline) {
  const std::string html = content_of("/");
  EXPECT_FALSE(std::regex_search(html, std::regex(R"([\s"']on[a-z]+\s*=)")));
  EXPECT_FALSE(std::regex_search(html, std::regex(R"(\sstyle\s*=|<style|javascript:)")));
  EXPECT_FALSE(std::regex_search(html, std::regex(R"(<script(?! src="page\.js"[^>]*></script>))")));
}

TEST(Page, MakesNoMarkupOrCodeOfText) {
  const std::string script = content_of("/page.js");
  for (const char* name :
       {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function",
        "DOMParser", "createContextualFragment", "srcdoc"}) {
    EXPECT_THAT(script, Not(HasSubstr(name)));
  }
}

}  // namespace
}  // namespace bev
