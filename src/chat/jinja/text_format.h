// Python's % and str.format formatting.
#pragma once

#include <string>
#include <string_view>

#include "chat/jinja/object.h"
#include "chat/jinja/value.h"

namespace bev::jinja {

// "%s of %d" % values: one value, a tuple, or a dict for %(name)s.
TracedText percent_format(const TracedText& format, const Value& values);
// "{} of {name}".format(...): fields by index or name, without format specifications.
TracedText brace_format(const TracedText& format, const Arguments& arguments);

}  // namespace bev::jinja
