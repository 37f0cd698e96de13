#include "app/megatron_flags.h"

#include <algorithm>
#include <span>

#include "app/commands/commands.h"
#include "app/megatron_tables.h"
#include "base/fields.h"
#include "base/text.h"

namespace bev {

namespace {

using Values = ForeignFlag::Values;

struct Name {
  std::string name;
  Values values = Values::kNone;
};

std::vector<Name> names_of(const MegatronGroup& group) {
  std::vector<Name> out;
  for (std::string& word : split(group.names, ' ')) {
    Name name{std::move(word), Values::kNone};
    if (name.name.ends_with('=')) name.values = Values::kOne;
    if (name.name.ends_with('+')) name.values = Values::kSeveral;
    if (name.values != Values::kNone) name.name.pop_back();
    out.push_back(std::move(name));
  }
  return out;
}

std::string not_needed(const MegatronGroup& group) { return concat("is not needed: ", group.text); }

std::string give(const MegatronGroup& group) {
  return concat("give ", group.text, group.more.empty() ? "" : ", ", group.more);
}

std::string not_built(const MegatronGroup& group) {
  return concat("not built yet: ", group.text, group.more.empty() ? "" : "; ", group.more);
}

// A kind of group, and what is said about its flags.
struct Kind {
  MegatronStatus status;
  std::span<const MegatronGroup> groups;
  std::string (*reason)(const MegatronGroup& group);
  const char* test;
};

std::vector<Kind> foreign_kinds() {
  auto text = [](const MegatronGroup& group) { return std::string(group.text); };
  constexpr const char* kRefusal = "Megatron/RefusedFlag.SaysWhatToDo/";
  return {{MegatronStatus::kNoSwitch, no_switch_groups(), not_needed,
           "Megatron/IdleFlag.ChangesNothing/"},
          {MegatronStatus::kRenamed, renamed_groups(), give, kRefusal},
          {MegatronStatus::kRefused, refused_groups(), text, kRefusal},
          {MegatronStatus::kRefused, not_built_groups(), not_built, kRefusal}};
}

// Names of tests have letters, digits and underscores.
std::string test_name(std::string_view flag) {
  std::string out(flag);
  std::ranges::replace(out, '-', '_');
  return out;
}

std::string dashed(std::string_view name) {
  std::string out(name);
  std::ranges::replace(out, '_', '-');
  return out;
}

// The flag that `name` is for the command, as it is written here; "" if it has none.
std::string own_flag(const FieldList& list, std::string_view name) {
  const std::string plain = dashed(name);
  if (list.find_shorthand(plain)) return concat("--", plain);
  if (const Field* field = list.find(plain)) return concat("--", field->name());
  if (const auto* entry = list.find_negated(plain)) return concat("--no-", entry->field.name());
  return "";
}

void add_acting(MegatronTable& table) {
  for (const MegatronGroup& group : acting_groups()) {
    std::unique_ptr<CommandCall> call = find_command(group.command).call({});
    FieldList list;
    call->fields(list);
    const bool trains = group.command == "train";
    for (Name& flag : names_of(group)) {
      std::string own = own_flag(list, flag.name);
      if (own.empty()) {
        table.unknown.push_back(std::move(flag.name));
        continue;
      }
      if (!trains) own = concat("bevatron ", group.command, " ", own);
      std::string test = concat(
          trains ? "Megatron/ActingFlag.ChangesTheDryRun/" : "Megatron/PreprocessFlag.IsThere/",
          test_name(flag.name));
      table.flags.push_back({.name = std::move(flag.name),
                             .status = MegatronStatus::kActs,
                             .maps_to = std::move(own),
                             .reason = "",
                             .test = std::move(test)});
    }
  }
}

}  // namespace

const char* name_of(MegatronStatus status) {
  constexpr const char* kNames[] = {"acts", "no-switch", "renamed", "refused"};
  return kNames[static_cast<std::size_t>(status)];
}

void add_megatron_flags(FieldList& list, std::string_view command) {
  for (const Kind& kind : foreign_kinds()) {
    for (const MegatronGroup& group : kind.groups) {
      if (group.command != command) continue;
      for (Name& flag : names_of(group)) {
        if (!own_flag(list, flag.name).empty()) continue;  // it has been built meanwhile
        bool taken = kind.status == MegatronStatus::kNoSwitch;
        list.foreign({std::move(flag.name), taken, kind.reason(group), flag.values});
      }
    }
  }
}

MegatronTable megatron_table() {
  MegatronTable table;
  add_acting(table);
  for (const Kind& kind : foreign_kinds()) {
    for (const MegatronGroup& group : kind.groups) {
      for (Name& flag : names_of(group)) {
        // A name that one command takes and another refuses has the row of the first.
        if (std::ranges::find(table.flags, flag.name, &MegatronFlag::name) != table.flags.end()) {
          continue;
        }
        bool renamed = kind.status == MegatronStatus::kRenamed;
        std::string test = concat(kind.test, test_name(flag.name));
        table.flags.push_back({.name = std::move(flag.name),
                               .status = kind.status,
                               .maps_to = renamed ? std::string(group.text) : "",
                               .reason = kind.reason(group),
                               .test = std::move(test)});
      }
    }
  }
  std::ranges::sort(table.flags, {}, &MegatronFlag::name);
  return table;
}

}  // namespace bev
