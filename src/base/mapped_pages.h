// Pages of files that are mapped.
#pragma once

#include <cstddef>
#include <span>

namespace bev {

// Bytes of a mapping that are not looked at again soon: their whole pages count no longer as this
// process's memory. They can be read again.
void forget_pages(std::span<const std::byte> bytes);

}  // namespace bev
