#include "comm/settings.h"

#include <algorithm>
#include <iterator>

#include "base/text.h"

namespace bev {

std::string to_text(const Settings& settings) { return join(settings, "\n"); }

Settings settings_of(const std::string& text) {
  return text.empty() ? Settings() : split(text, '\n');
}

std::string settings_difference(const Settings& here, const Settings& there) {
  auto only = [](const Settings& in, const Settings& not_in) {
    Settings out;
    std::ranges::set_difference(in, not_in, std::back_inserter(out));
    return out.empty() ? std::string("none of these") : join(out, " ");
  };
  if (here == there) return "";
  return concat(only(here, there), " here, ", only(there, here), " there");
}

}  // namespace bev
