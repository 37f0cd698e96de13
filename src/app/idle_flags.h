// Rejects flags of a feature that the run does not use: they would silently have no effect.
#pragma once

#include <string>
#include <vector>

namespace bev {

class FieldList;
class Options;
struct RunConfig;

// Returns one problem for each such flag that was given. `run` has its model and all flags, and is
// not yet resolved. If the user disables the feature explicitly (--num-experts 0), its other flags
// are accepted.
std::vector<std::string> idle_flags(const Options& options, const FieldList& list,
                                    const RunConfig& run);

}  // namespace bev
