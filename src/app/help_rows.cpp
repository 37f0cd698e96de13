#include "app/help_rows.h"

#include <algorithm>

#include "app/commands/commands.h"
#include "base/fields.h"
#include "base/text.h"

namespace bev {

std::vector<std::string> HelpRow::choices() const {
  constexpr std::string_view kList = "list of ";
  std::string_view words = type;
  if (words.starts_with(kList)) words.remove_prefix(kList.size());
  return words.find('|') == words.npos ? std::vector<std::string>() : split(words, '|');
}

std::string HelpRow::text() const {
  bool off = value == "none" || (!takes_value() && value != "true");
  return off ? help : concat(help, " (default: ", value, ")");
}

std::vector<HelpRow> help_rows(const Command& command) {
  std::unique_ptr<CommandCall> call = command.call({});
  FieldList list;
  call->fields(list);
  std::vector<HelpRow> rows;
  for (const auto& entry : list.entries()) {
    const Field& field = entry->field;
    HelpRow row{entry->section,
                {"--" + field.name()},
                field.type_text(),
                field.default_text(),
                field.help()};
    for (const std::string& alias : field.aliases()) row.flags.push_back("--" + alias);
    if (field.is_flag() && field.text() == "true") row.flags.push_back("--no-" + field.name());
    if (!field.negation().empty()) row.flags.push_back("--" + field.negation());
    rows.push_back(std::move(row));
  }
  for (const Shorthand& shorthand : list.shorthands()) {
    auto after =
        std::ranges::find(rows.rbegin(), rows.rend(), shorthand.section, &HelpRow::section);
    rows.insert(after.base(),
                {shorthand.section, {"--" + shorthand.name}, "shorthand", "", shorthand.help});
  }
  return rows;
}

std::vector<SharedRow> all_help_rows() {
  std::vector<SharedRow> out;
  for (const Command* command : commands()) {
    for (HelpRow& row : help_rows(*command)) {
      auto known = std::ranges::find_if(out, [&](const SharedRow& other) {
        return other.row.flags == row.flags && other.row.section == row.section &&
               other.row.text() == row.text();
      });
      if (known == out.end()) known = out.insert(out.end(), {std::move(row), {}});
      known->commands.emplace_back(command->name);
    }
  }
  return out;
}

std::vector<std::string> commands_with(const std::string& section) {
  std::vector<std::string> out;
  for (const Command* command : commands()) {
    std::vector<HelpRow> rows = help_rows(*command);
    bool has = std::ranges::find(rows, section, &HelpRow::section) != rows.end();
    if (has) out.push_back(concat("`", command->name, "`"));
  }
  return out;
}

}  // namespace bev
