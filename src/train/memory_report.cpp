#include "train/memory_report.h"

#include <fmt/format.h>

#include <utility>

namespace bev {

std::string memory_text(const Arena& arena, std::span<const Arena* const> hosts, int rank,
                        std::int64_t iterations) {
  auto megabytes = [](std::size_t bytes) { return static_cast<double>(bytes) / 1048576; };
  // The arena never releases memory, so `reserved` is also the maximum.
  std::string text = fmt::format(
      "[Rank {}] (after {} iterations) memory (MB) | allocated: {:.2f} | max allocated: {:.2f} | "
      "reserved: {:.2f} | max reserved: {:.2f}\nat the peak:",
      rank, iterations, megabytes(arena.in_use()), megabytes(arena.peak()),
      megabytes(arena.reserved()), megabytes(arena.reserved()));
  auto add_tags = [&](const Arena::TagTable& tags) {
    for (const auto& [tag, bytes] : tags) {
      text += fmt::format("\n  {:<24} {:>12.2f}", tag, megabytes(bytes));
    }
  };
  add_tags(arena.peak_by_tag());
  bool named = false;
  for (const Arena* host : hosts) {
    if (host == nullptr || host->peak() == 0) continue;
    if (!std::exchange(named, true)) text += "\nin host memory, at the peak:";
    add_tags(host->peak_by_tag());
  }
  return text;
}

}  // namespace bev
