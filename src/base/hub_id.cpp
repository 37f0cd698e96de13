#include "base/hub_id.h"

#include <algorithm>

#include "base/text.h"

namespace bev {

namespace {
bool is_name(std::string_view text) {
  auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  };
  return !text.empty() && text[0] != '.' && std::ranges::all_of(text, allowed);
}
}  // namespace

std::string hub_hint(std::string_view path) {
  std::size_t slash = path.find('/');
  if (slash == path.npos) return "";
  std::string_view name = path.substr(slash + 1);
  if (!is_name(path.substr(0, slash)) || !is_name(name)) return "";
  return concat("; if it is a name of the Hugging Face hub, download it first: `hf download ", path,
                " --local-dir ", name, "`, then give ", name);
}

}  // namespace bev
