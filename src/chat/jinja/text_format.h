// Python's % and str.format formatting.
#pragma once

#include <string>
#include <string_view>

#include "chat/jinja/object.h"
#include "chat/jinja/value.h"

namespace bev::jinja {

// "%s of %d" % values: one value, a tuple, or a dict for %(name)s.
std::string percent_format(std::string_view format, const Value& values);
// "{} of {name}".format(...): fields by index or name, without format specifications.
std::string brace_format(std::string_view format, const Arguments& arguments);

}  // namespace bev::jinja
