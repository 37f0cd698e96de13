#include "serve/page.h"

namespace bev {
namespace embedded {

// From a source that cmake/BevEmbed.cmake writes.
extern const std::string_view index_html, page_css, page_js;

}  // namespace embedded

std::span<const PageFile> page_files() {
  static const PageFile files[] = {
      {"/", "text/html; charset=utf-8", embedded::index_html},
      {"/page.css", "text/css; charset=utf-8", embedded::page_css},
      {"/page.js", "text/javascript; charset=utf-8", embedded::page_js},
  };
  return files;
}

}  // namespace bev
