// Flags of Megatron's launch scripts that are not fields here. Some have no effect and are
// accepted; the others are refused with the flag to use instead, so that a script runs unchanged or
// its user learns what to change.
#pragma once

namespace bev {

class FieldList;

void add_megatron_flags(FieldList& list);

}  // namespace bev
