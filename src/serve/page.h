// The chat page that the server shows at "/". Its files (src/serve/page) are compiled into the
// program.
#pragma once

#include <span>
#include <string_view>

namespace bev {

struct PageFile {
  std::string_view path;  // of the request: "/", "/page.css", "/page.js"
  std::string_view content_type;
  std::string_view content;
};

std::span<const PageFile> page_files();

}  // namespace bev
