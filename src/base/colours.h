// Colours of text on terminals.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace bev {

// Whether what is written to the descriptor is shown in colours: on a terminal that has them,
// unless the environment has NO_COLOR (no-color.org).
bool has_colours(int descriptor);

enum class Style : std::uint8_t { kHeading, kFlag, kWarning, kError };
// The text with the codes that switch the style on and off.
std::string styled(Style style, std::string_view text);

}  // namespace bev
