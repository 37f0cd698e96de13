#include "app/help.h"

#include <algorithm>
#include <vector>

#include "app/commands/commands.h"
#include "app/help_rows.h"
#include "app/megatron_flags.h"
#include "app/other_names.h"
#include "app/shell_files.h"
#include "base/colours.h"
#include "base/error.h"
#include "base/fields.h"
#include "base/text.h"

namespace bev {

namespace {

constexpr std::size_t kWidth = 100;

std::string paint(bool colour, Style style, std::string_view text) {
  return colour ? styled(style, text) : std::string(text);
}

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

void append_row(std::string& out, const HelpRow& row, bool colour) {
  std::size_t column = 2 + join(row.flags, ", ").size();
  const char* between = ", ";
  if (column > kWidth) {
    between = ",\n  ";
    column = 2 + row.flags.back().size();  // of the last line, which the type follows
  }
  std::vector<std::string> flags;
  for (const std::string& flag : row.flags) flags.push_back(paint(colour, Style::kFlag, flag));
  out.append(concat("  ", join(flags, between)));
  if (row.takes_value()) append_type(out, concat("  ", row.type), column, 6);
  append_wrapped(out, row.text(), 6);
  out.push_back('\n');
}

// A line of the row before, below its text.
void append_note(std::string& out, std::string_view text) {
  out.pop_back();  // the newline, with which the text begins
  append_wrapped(out, text, 6);
  out.push_back('\n');
}

std::string heading(bool colour, std::string_view text) {
  return concat(paint(colour, Style::kHeading, concat(text, ":")), "\n");
}

const HelpRow* find_row(const std::vector<HelpRow>& rows, std::string_view flag) {
  auto found = std::ranges::find_if(rows, [&](const HelpRow& row) {
    return std::ranges::find(row.flags, flag) != row.flags.end();
  });
  return found == rows.end() ? nullptr : &*found;
}

std::vector<std::string> sections_of(const std::vector<HelpRow>& rows) {
  std::vector<std::string> out;
  for (const HelpRow& row : rows) {
    if (out.empty() || out.back() != row.section) out.push_back(row.section);
  }
  return out;
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

// What commands say to a flag that none of them has.
std::string foreign_help(const std::string& name) {
  std::vector<std::string> spellings = {"config", "help"};
  for (const Command* command : commands()) {
    std::unique_ptr<CommandCall> call = command->call({});
    FieldList list;
    call->fields(list);
    if (const ForeignFlag* flag = list.find_foreign(name)) {
      return concat("--", name, ": ", flag->why, "\n");
    }
    if (std::string known = known_as(list, name, "--"); !known.empty()) {
      return concat("--", name, ": ", known, "\n");
    }
    std::ranges::move(list.spellings(), std::back_inserter(spellings));
  }
  std::string nearest = nearest_name(name, spellings);
  BEV_FAIL(ErrorKind::kConfig, "help: '", name, "' is no command and no flag; ",
           nearest.empty() ? concat("`bevatron help --search ", name, "` looks into the texts")
                           : concat("did you mean --", nearest, "?"));
}

std::string command_lines(bool colour, std::string_view first_word = "") {
  std::string out;
  for (const Command* command : commands()) {
    if (!first_word.empty() && split(command->name, ' ')[0] != first_word) continue;
    out.append(concat("  ", paint(colour, Style::kFlag, command->name),
                      std::string(20 - command->name.size(), ' '), command->summary, "\n"));
  }
  return out;
}

// `bevatron help COMMAND [SECTION or FLAG]`, or the first word of several commands.
std::string command_help(std::span<const std::string> words, bool colour) {
  std::string several = words.size() == 1 ? command_lines(colour, words[0]) : "";
  bool is_first_word = !several.empty() &&
                       std::ranges::find(commands(), words[0], &Command::name) == commands().end();
  if (is_first_word) return several;
  const Command& command = find_command(words);
  std::span<const std::string> more = words.subspan(word_count(command));
  if (more.empty()) return help_text(command, colour);
  std::vector<HelpRow> rows = help_rows(command);
  std::vector<std::string> sections = sections_of(rows);
  std::string wanted = join(more, " ");
  if (std::ranges::find(sections, wanted) != sections.end()) {
    return help_text(command, colour, wanted);
  }
  std::string flag = wanted.starts_with("--") ? wanted : "--" + wanted;
  const HelpRow* row = find_row(rows, flag);
  BEV_CHECK(row, ErrorKind::kConfig, "help: '", wanted, "' is no section and no flag of ",
            command.name, "; its sections are ", join(sections, ", "));
  std::string out;
  append_row(out, *row, colour);
  return out;
}

std::string megatron_help(std::span<const std::string> words) {
  if (words.empty()) return megatron_text();
  BEV_CHECK(words.size() == 1 && (words[0] == "--json" || words[0] == "--markdown"),
            ErrorKind::kConfig, "help megatron: '", words[0], "' is not --json or --markdown");
  return words[0] == "--json" ? megatron_json() : megatron_markdown();
}

bool names_command(const std::string& word) {
  return std::ranges::any_of(commands(), [&](const Command* command) {
    return command->name == word || command->name.starts_with(word + " ");
  });
}

}  // namespace

std::string help_text(bool colour) {
  std::string out =
      "Bevatron trains transformer models at any scale.\n\n"
      "Usage: bevatron COMMAND [--config FILE.yaml] [flags]\n\n" +
      heading(colour, "Commands") + command_lines(colour);
  out.append("\n" + heading(colour, "Help"));
  constexpr std::string_view kTopics[][2] = {
      {"help COMMAND", "its flags in sections, the usual ones first"},
      {"help COMMAND NAME", "one section, or one flag"},
      {"help FLAG", "a flag: `bevatron help --lr`"},
      {"help --search WORD", "flags whose texts have the word"},
      {"help presets", "known models, for --preset"},
      {"help models", "model families, and what is tested of each (--json)"},
      {"help layouts", "how a model is split over ranks, and how that is written"},
      {"help megatron", "what becomes of each of Megatron-LM's flags (--json)"},
      {"help --man", "all of it as a manual page"},
  };
  for (const auto& [name, what] : kTopics) {
    out.append(concat("  ", paint(colour, Style::kFlag, name), std::string(20 - name.size(), ' '),
                      what, "\n"));
  }
  return out +
         "\nA flag goes before the file, the file before a preset; of a flag given twice the last "
         "one counts.\nYAML keys are flag names, flat or under their section. Results go to "
         "stdout, logs to stderr.\n";
}

std::string help_text(const Command& command, bool colour, const std::string& section) {
  std::vector<HelpRow> rows = help_rows(command);
  std::string out;
  if (section.empty()) {
    out = concat("bevatron ", command.name, ": ", command.summary, "\n\nUsage: bevatron ",
                 command.name, command.words.empty() ? "" : concat(" ", command.words),
                 " [--config FILE.yaml] [flags]\n\n", heading(colour, "Examples"));
    for (const std::string& example : split(command.examples, '\n')) {
      out.append(concat("  ", example, "\n"));
    }
  }
  if (section.empty() && !command.usual.empty()) {
    out.append(concat("\n", heading(colour, "usual flags")));
    for (const std::string& name : split(command.usual, ' ')) {
      if (const HelpRow* row = find_row(rows, "--" + name)) append_row(out, *row, colour);
    }
    std::string sections =
        concat("All flags follow in sections, of which `bevatron help ", command.name,
               " NAME` shows one: ", join(sections_of(rows), ", "));
    append_wrapped(out, sections, 0);
    out.push_back('\n');
  }
  std::string last;
  for (const HelpRow& row : rows) {
    if (!section.empty() && row.section != section) continue;
    if (row.section != last) {
      out.append(concat(out.empty() ? "" : "\n", heading(colour, last = row.section)));
    }
    append_row(out, row, colour);
  }
  return out;
}

std::string flag_help(const std::string& name, bool colour) {
  std::string plain = name.starts_with("--") ? name.substr(2) : name;
  std::ranges::replace(plain, '_', '-');
  std::string flag = "--" + plain;
  if (plain == "config") {
    return concat("  ", paint(colour, Style::kFlag, flag),
                  "  FILE.yaml\n      flags as YAML keys, flat or under their section; flags of "
                  "the command line go before them\n      taken by all commands\n");
  }
  std::string out;
  for (const SharedRow& shared : all_help_rows()) {
    const HelpRow& row = shared.row;
    const std::string own = row.flags[0].substr(2);
    bool negated = !row.takes_value() && (flag == "--no-" + own || flag == "--disable-" + own);
    if (!negated && std::ranges::find(row.flags, flag) == row.flags.end()) continue;
    if (!out.empty()) out.push_back('\n');
    append_row(out, row, colour);
    append_note(out, concat("section ", row.section, "; taken by ", join(shared.commands, ", ")));
  }
  return out.empty() ? foreign_help(plain) : out;
}

std::string search_help(std::span<const std::string> words, bool colour) {
  BEV_CHECK(!words.empty(), ErrorKind::kConfig, "help --search: has no word; give one");
  std::string out;
  for (const SharedRow& shared : all_help_rows()) {
    const HelpRow& row = shared.row;
    std::string text =
        lower(concat(join(row.flags, " "), " ", row.type, " ", row.text(), " ", row.section));
    bool has_all = std::ranges::all_of(
        words, [&](const std::string& word) { return text.find(lower(word)) != text.npos; });
    if (!has_all) continue;
    append_row(out, row, colour);
    append_note(out, concat("[", join(shared.commands, ", "), "]"));
  }
  BEV_CHECK(!out.empty(), ErrorKind::kConfig, "help --search: no flag's text has ",
            join(words, " and "));
  return out;
}

std::string help_for(std::span<const std::string> words, bool colour) {
  if (words.empty()) return help_text(colour);
  const std::string& first = words[0];
  if (first == "--markdown") return flags_markdown();
  if (first == "--man") return manual_page();
  if (first == "--search") return search_help(words.subspan(1), colour);
  if (first == "presets") return presets_help();
  if (first == "models") {
    return words.size() > 1 && words[1] == "--json" ? models_json() : models_help();
  }
  if (first == "layouts") return layouts_help();
  if (first == "megatron") return megatron_help(words.subspan(1));
  bool flag = first.starts_with("--") || (words.size() == 1 && !names_command(first));
  if (!flag) return command_help(words, colour);
  // An unknown word is more likely a command if one has a similar name.
  std::vector<std::string> names;
  for (const Command* command : commands()) names.emplace_back(command->name);
  if (!first.starts_with("--") && !nearest_name(first, names).empty()) {
    return command_help(words, colour);
  }
  return flag_help(first, colour);
}

}  // namespace bev
