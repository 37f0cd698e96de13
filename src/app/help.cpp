#include "app/help.h"

#include <algorithm>
#include <vector>

#include "app/commands/commands.h"
#include "app/run_config.h"
#include "base/fields.h"
#include "base/text.h"

namespace bev {

namespace {

// A table row: a field or a shorthand.
struct Row {
  std::string section;
  std::vector<std::string> flags;  // the first is the name
  std::string type, value, help;
};

std::vector<Row> rows_of(const Command& command) {
  std::unique_ptr<CommandCall> call = command.call({});
  FieldList list;
  call->fields(list);
  std::vector<Row> rows;
  for (const auto& entry : list.entries()) {
    const Field& field = entry->field;
    Row row{entry->section,
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
    auto after = std::ranges::find(rows.rbegin(), rows.rend(), shorthand.section, &Row::section);
    rows.insert(after.base(),
                {shorthand.section, {"--" + shorthand.name}, "shorthand", "", shorthand.help});
  }
  return rows;
}

constexpr std::size_t kWidth = 100;

// Appends the type after `column` characters of the line; many choices wrap to the next lines.
void append_type(std::string& out, std::string_view type, std::size_t column, std::size_t indent) {
  std::vector<std::string> choices = split(type, '|');
  for (std::size_t i = 0; i < choices.size(); ++i) {
    std::string text = i + 1 < choices.size() ? choices[i] + "|" : choices[i];
    if (column + text.size() > kWidth) {
      out.append(concat("\n", std::string(indent, ' ')));
      column = indent;
    }
    out.append(text);
    column += text.size();
  }
}

void append_wrapped(std::string& out, std::string_view text, std::size_t indent) {
  std::size_t column = kWidth;  // forces the first break
  for (const std::string& word : split(text, ' ')) {
    if (column + 1 + word.size() > kWidth) {
      out.append(concat("\n", std::string(indent, ' '), word));
      column = indent + word.size();
    } else {
      out.append(concat(" ", word));
      column += 1 + word.size();
    }
  }
}

// Escapes the text for a Markdown table cell.
std::string cell(std::string_view text) {
  std::string out;
  for (char c : text) out.append(c == '|' ? "\\|" : std::string(1, c));
  return out;
}

std::string code(std::string_view text) { return concat("`", cell(text), "`"); }

void append_table(std::string& out, const std::vector<Row>& rows, const std::string& section) {
  out.append("| flag | value | default | meaning |\n| --- | --- | --- | --- |\n");
  for (const Row& row : rows) {
    if (row.section != section) continue;
    std::vector<std::string> flags;
    for (const std::string& flag : row.flags) flags.push_back(code(flag));
    out.append(concat("| ", join(flags, ", "), " | ", code(row.type), " | ", cell(row.value), " | ",
                      cell(row.help), " |\n"));
  }
}

// Flags of other programs' scripts: those accepted, or those refused.
void append_foreign(std::string& out, const FieldList& list, bool taken) {
  out.append("| flag | what is said |\n| --- | --- |\n");
  for (const ForeignFlag& flag : list.foreign_flags()) {
    if (flag.taken != taken) continue;
    out.append(concat("| ", code("--" + flag.name), " | ", cell(flag.why), " |\n"));
  }
}

}  // namespace

std::string help_text() {
  std::string out =
      "Bevatron trains transformer models at any scale.\n\n"
      "Usage: bevatron COMMAND [--config FILE.yaml] [flags]\n"
      "       bevatron help [COMMAND]\n\nCommands:\n";
  for (const Command* command : commands()) {
    out.append(concat("  ", command->name, std::string(20 - command->name.size(), ' '),
                      command->summary, "\n"));
  }
  return out +
         "\nA flag goes before the file, the file before a preset. YAML keys are flag names, flat "
         "or "
         "under their\nsection. Results go to stdout, logs to stderr.\n";
}

std::string help_text(const Command& command) {
  std::string out = concat("bevatron ", command.name, ": ", command.summary, "\n\nUsage: bevatron ",
                           command.name, command.words.empty() ? "" : concat(" ", command.words),
                           " [--config FILE.yaml] [flags]\n\nExamples:\n");
  for (const std::string& example : split(command.examples, '\n'))
    out.append(concat("  ", example, "\n"));
  std::string section;
  for (const Row& row : rows_of(command)) {
    if (row.section != section) out.append(concat("\n", section = row.section, ":\n"));
    std::string flags = concat("  ", join(row.flags, ", "));
    if (flags.size() > kWidth) {
      out.append(concat("  ", join(row.flags, ",\n  ")));
      flags = concat("  ", row.flags.back());  // the last line, which the type follows
    } else {
      out.append(flags);
    }
    bool flag = row.type == "flag" || row.type == "shorthand";
    if (!flag) append_type(out, concat("  ", row.type), flags.size(), 6);
    std::string help = row.help;
    bool off = row.value == "none" || (flag && row.value != "true");
    if (!off) help.append(concat(" (default: ", row.value, ")"));
    append_wrapped(out, help, 6);
    out.push_back('\n');
  }
  return out;
}

std::string flags_markdown() {
  std::string out =
      "# Flags\n\nGenerated by `bevatron help --markdown`; do not edit. YAML keys are the same "
      "names, flat or "
      "under their\nsection. Every flag of type `flag` also has `--no-NAME` and `--NAME=false`; "
      "lists take "
      "several values or one\nwith commas. A shorthand sets what is not given by its own name.\n";
  std::vector<std::string> done;
  for (const Command* command : commands()) {
    std::vector<Row> rows = rows_of(*command);
    for (const Row& first : rows) {
      if (std::ranges::find(done, first.section) != done.end()) continue;
      done.push_back(first.section);
      std::vector<std::string> takers;
      for (const Command* other : commands()) {
        std::vector<Row> theirs = rows_of(*other);
        auto found = std::ranges::find(theirs, first.section, &Row::section);
        if (found != theirs.end()) takers.push_back(concat("`", other->name, "`"));
      }
      out.append(concat("\n## ", first.section, "\nTaken by ", join(takers, ", "), ".\n\n"));
      append_table(out, rows, first.section);
    }
  }
  RunConfig run;
  FieldList list;
  run.fields(list);
  out.append(
      "\n## Megatron's flags that are not needed\nTaken with a warning, with or without a value, "
      "by "
      "`train`, `verify`, `schedule`; they change nothing.\n\n");
  append_foreign(out, list, true);
  out.append("\n## Megatron's flags that have another name or are not there\n\n");
  append_foreign(out, list, false);
  return out;
}

}  // namespace bev
