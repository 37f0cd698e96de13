// Serialisation of wait records, so that one process can report the ranks of all.
#pragma once

#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/hang_report.h"

namespace bev {

std::string write_wait_records(std::span<const WaitRecord> records);
// The names in the records are stored in `names`, which must outlive them.
std::vector<WaitRecord> read_wait_records(std::string_view text, std::set<std::string>& names);

}  // namespace bev
