// Flags of a part that the run does not have: they would do nothing, silently.
#pragma once

#include <string>
#include <vector>

namespace bev {

class FieldList;
class Options;
struct RunConfig;

// One problem for each that was given; `run` has its model and all flags, and is not yet resolved.
// Who switches the part off himself (--num-experts 0) means it, and may leave its flags in place.
std::vector<std::string> idle_flags(const Options& options, const FieldList& list,
                                    const RunConfig& run);

}  // namespace bev
