// Rows with named columns: JSON lines, CSV (RFC 4180, with a header) and TSV (with a header,
// without quotes), by the end of the file's name.
#pragma once

#include <string>
#include <vector>

#include "data/sft/json_rows.h"

namespace bev {

// The rows as objects; cells of CSV and TSV are texts. Blank lines are skipped. Throws
// Error(kInput) naming file and line, or if there is no row.
std::vector<JsonPlace> read_table(const std::string& path);

}  // namespace bev
