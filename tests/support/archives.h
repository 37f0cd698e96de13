// Compression of text with gzip and zstd.
#pragma once

#include <string>
#include <string_view>

namespace bev {

std::string gzip(std::string_view text);
std::string zstd(std::string_view text);

}  // namespace bev
