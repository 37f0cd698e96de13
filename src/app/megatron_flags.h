// What becomes of each flag of Megatron-LM's scripts: most are fields here, some have no effect and
// are accepted, the others are refused with what to give instead.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace bev {

class FieldList;

// Adds those flags that are not fields of the command.
void add_megatron_flags(FieldList& list, std::string_view command = "train");

enum class MegatronStatus : std::uint8_t { kActs, kNoSwitch, kRenamed, kRefused };
const char* name_of(MegatronStatus status);  // "acts", "no-switch", "renamed", "refused"

struct MegatronFlag {
  std::string name;  // without dashes, with Megatron's underscores
  MegatronStatus status = MegatronStatus::kActs;
  std::string maps_to;  // what to give here; "" for flags that no command has
  std::string reason;   // why it does not act, or ""
  std::string test;     // the test that holds the row: "Suite.Name/flag"
};

struct MegatronTable {
  std::vector<MegatronFlag> flags;   // by name
  std::vector<std::string> unknown;  // names of acting_groups() that no command has
};
MegatronTable megatron_table();

// `help megatron`: for people, as one JSON object, and as the flag table of docs/from-megatron.md.
std::string megatron_text();
std::string megatron_json();
std::string megatron_markdown();

}  // namespace bev
