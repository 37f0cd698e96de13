// Flags of Megatron's launch scripts that are no fields here, so that a script runs as it is or
// hears what to change: some are not needed and taken, others have another name.
#pragma once

namespace bev {

class FieldList;

void add_megatron_flags(FieldList& list);

}  // namespace bev
