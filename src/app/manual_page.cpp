#include <algorithm>

#include "app/commands/commands.h"
#include "app/help_rows.h"
#include "app/shell_files.h"
#include "base/text.h"

namespace bev {

namespace {

// Text for roff: dashes that stay dashes, and no line that is read as a request.
std::string roff(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (c == '\\') {
      out.append("\\e");
    } else if (c == '-') {
      out.append("\\-");
    } else {
      out.push_back(c);
    }
  }
  return out.starts_with('.') || out.starts_with('\'') ? "\\&" + out : out;
}

std::string bold(std::string_view text) { return concat("\\fB", roff(text), "\\fR"); }

void append_row(std::string& out, const HelpRow& row) {
  std::vector<std::string> flags;
  for (const std::string& flag : row.flags) flags.push_back(bold(flag));
  out.append(concat(".TP\n", join(flags, ", ")));
  if (row.takes_value()) out.append(concat(" \\fI", roff(row.type), "\\fR"));
  out.append(concat("\n", roff(row.text()), "\n"));
}

void append_flags(std::string& out) {
  std::vector<SharedRow> rows = all_help_rows();
  std::vector<std::string> done;
  for (const SharedRow& first : rows) {
    const std::string& section = first.row.section;
    if (std::ranges::find(done, section) != done.end()) continue;
    done.push_back(section);
    std::vector<std::string> names;
    for (const std::string& name : commands_with(section)) {
      names.push_back(name.substr(1, name.size() - 2));
    }
    out.append(concat(".SS ", roff(section), "\nTaken by ", roff(join(names, ", ")), ".\n"));
    for (const SharedRow& shared : rows) {
      if (shared.row.section == section) append_row(out, shared.row);
    }
  }
}

}  // namespace

std::string manual_page() {
  std::string out =
      ".TH BEVATRON 1 \"\" \"Bevatron\" \"User Commands\"\n"
      ".SH NAME\nbevatron \\- train, convert and run transformer models\n"
      ".SH SYNOPSIS\n.B bevatron\n.I COMMAND\n[\\fB\\-\\-config\\fR \\fIFILE.yaml\\fR] "
      "[\\fIflags\\fR]\n.br\n.B bevatron help\n[\\fICOMMAND\\fR | \\fIFLAG\\fR | \\-\\-search "
      "\\fIWORD\\fR | presets | layouts]\n"
      ".SH DESCRIPTION\nBevatron trains transformer models at any scale. A flag goes before the "
      "file of\n.BR \\-\\-config ,\nthe file before a preset; of a flag given twice the last one "
      "counts. YAML keys are flag names, flat or under their section. A flag without a value also "
      "has\n.B \\-\\-no\\-NAME\nand\n.BR \\-\\-NAME=false ;\nlists take several values or one with "
      "commas. Results go to standard output, logs to standard error.\n"
      ".SH COMMANDS\n";
  std::string examples;
  for (const Command* command : commands()) {
    out.append(concat(".TP\n", bold(command->name), "\n", roff(command->summary), "\n"));
    for (const std::string& example : split(command->examples, '\n')) {
      examples.append(concat(".PP\n.nf\n", roff(example), "\n.fi\n"));
    }
  }
  out.append(".SH FLAGS\n");
  append_flags(out);
  return out +
         ".SH ENVIRONMENT\n.TP\n\\fBNO_COLOR\\fR\nif set and not empty, no colours on terminals\n"
         ".SH EXIT STATUS\n0 success, 1 the run failed, 2 invalid configuration or input, 3 "
         "verification mismatch, 130 and 143 after a clean stop by SIGINT and SIGTERM.\n"
         ".SH EXAMPLES\n" +
         examples;
}

}  // namespace bev
