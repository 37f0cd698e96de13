// Completion of shells: words of commands, flags of each command, values of flags.
#include <algorithm>
#include <map>
#include <set>

#include "app/commands/commands.h"
#include "app/help_rows.h"
#include "app/shell_files.h"
#include "base/text.h"
#include "models/families/family.h"

namespace bev {

namespace {

using Words = std::vector<std::string>;

// First words of commands, and the second words of those that have two.
std::map<std::string, Words> command_words() {
  std::map<std::string, Words> out;
  for (const Command* command : commands()) {
    Words words = split(command->name, ' ');
    Words& second = out[words[0]];
    if (words.size() > 1) second.push_back(words[1]);
  }
  out["help"] = {"presets", "models", "layouts", "megatron"};
  for (const Command* command : commands()) {
    std::string first = split(command->name, ' ')[0];
    Words& topics = out["help"];
    if (std::ranges::find(topics, first) == topics.end()) topics.push_back(first);
  }
  return out;
}

Words first_words() {
  Words out;
  for (const auto& [first, second] : command_words()) out.push_back(first);
  return out;
}

// The flags of a command, each with the row it is from.
std::vector<std::pair<std::string, HelpRow>> flags_of(const Command& command) {
  std::vector<std::pair<std::string, HelpRow>> out;
  for (const HelpRow& row : help_rows(command)) {
    for (const std::string& flag : row.flags) out.emplace_back(flag, row);
  }
  out.push_back({"--config", {"", {"--config"}, "text", "none", "YAML file with flags as keys"}});
  out.push_back({"--help", {"", {"--help"}, "flag", "", "flags of the command"}});
  return out;
}

// Flags whose values are words, the same for all commands, and flags with other values.
struct Values {
  std::map<std::string, Words> words;
  std::set<std::string> other;
};
Values values_of_flags() {
  Values out;
  for (const Command* command : commands()) {
    for (const auto& [flag, row] : flags_of(*command)) {
      if (!row.takes_value()) continue;
      Words choices = row.choices();
      if (flag == "--preset") choices = preset_names();
      if (choices.empty()) {
        out.other.insert(flag);
      } else {
        out.words.emplace(flag, choices);
      }
    }
  }
  for (const auto& [flag, words] : out.words) out.other.erase(flag);
  return out;
}

// In single quotes, for any of the shells.
std::string shell_word(std::string_view text) {
  std::string out = "'";
  for (char c : text) out.append(c == '\'' ? "'\\''" : std::string(1, c));
  return out + "'";
}

// The beginning of a help text: what fits into a list of flags.
std::string brief(const std::string& help) {
  std::string text = help.substr(0, help.find(';'));
  constexpr std::size_t kMost = 70;
  if (text.size() > kMost) text = text.substr(0, text.rfind(' ', kMost)) + " ...";
  return text;
}

}  // namespace

std::string bash_completion() {
  std::string out =
      "# bash completion of bevatron; made by `bevatron completion bash`.\n"
      "_bevatron() {\n"
      "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}\n"
      "  local first=${COMP_WORDS[1]} second=${COMP_WORDS[2]} words=\n"
      "  COMPREPLY=()\n"
      "  if ((COMP_CWORD == 1)); then\n";
  auto reply = [](const std::string& words) {
    return concat("COMPREPLY=($(compgen -W ", words, " -- \"$word\"))");
  };
  out += concat("    ", reply(shell_word(join(first_words(), " "))), "\n    return\n  fi\n");
  out += "  if ((COMP_CWORD == 2)); then\n    case $first in\n";
  for (const auto& [first, second] : command_words()) {
    if (second.empty()) continue;
    out += concat("      ", first, ") ", reply(shell_word(join(second, " "))), "; return ;;\n");
  }
  out += "    esac\n  fi\n  case $before in\n";
  Values values = values_of_flags();
  for (const auto& [flag, words] : values.words) {
    out += concat("    ", flag, ") ", reply(shell_word(join(words, " "))), "; return ;;\n");
  }
  const Words other(values.other.begin(), values.other.end());
  out += concat("    ", join(other, "|"),
                ")\n      COMPREPLY=($(compgen -f -- \"$word\")); return ;;\n");
  out += "  esac\n  case \"$first $second\" in\n";
  for (const Command* command : commands()) {
    Words flags;
    for (const auto& [flag, row] : flags_of(*command)) flags.push_back(flag);
    out += concat("    \"", command->name, "\"*) words=", shell_word(join(flags, " ")), " ;;\n");
  }
  return out +
         "  esac\n"
         "  if [[ $word == -* ]]; then\n"
         "    COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n"
         "  else\n"
         "    COMPREPLY=($(compgen -f -- \"$word\"))\n"
         "  fi\n"
         "}\n"
         "complete -o filenames -F _bevatron bevatron\n";
}

std::string zsh_completion() {
  std::string out =
      "#compdef bevatron\n# zsh completion of bevatron; made by `bevatron completion zsh`.\n"
      "_bevatron() {\n  local -a flags\n"
      "  if (( CURRENT == 2 )); then\n";
  out += concat("    compadd -- ", join(first_words(), " "), "\n    return\n  fi\n");
  out += "  if (( CURRENT == 3 )); then\n    case $words[2] in\n";
  for (const auto& [first, second] : command_words()) {
    if (second.empty()) continue;
    out += concat("      ", first, ") compadd -- ", join(second, " "), "; return ;;\n");
  }
  out += "    esac\n  fi\n  case $words[CURRENT-1] in\n";
  Values values = values_of_flags();
  for (const auto& [flag, words] : values.words) {
    Words safe;
    for (const std::string& word : words) safe.push_back(shell_word(word));
    out += concat("    ", flag, ") compadd -- ", join(safe, " "), "; return ;;\n");
  }
  const Words other(values.other.begin(), values.other.end());
  out += concat("    ", join(other, "|"), ") _files; return ;;\n  esac\n");
  out += "  case \"$words[2] $words[3]\" in\n";
  for (const Command* command : commands()) {
    out += concat("    ", shell_word(command->name), "*)\n      flags=(\n");
    for (const auto& [flag, row] : flags_of(*command)) {
      out += concat("        ", shell_word(concat(flag, ":", brief(row.help))), "\n");
    }
    out += "      ) ;;\n";
  }
  return out +
         "  esac\n"
         "  if [[ $PREFIX == -* ]]; then _describe -o flag flags; else _files; fi\n"
         "}\n"
         "_bevatron \"$@\"\n";
}

std::string fish_completion() {
  std::string out =
      "# fish completion of bevatron; made by `bevatron completion fish`.\n"
      "# Whether the words after the program are these, with others behind them or none.\n"
      "function __bevatron_has\n"
      "  set -l words (commandline -opc)\n"
      "  set -e words[1]\n"
      "  test (count $words) -ge (count $argv); or return 1\n"
      "  for i in (seq (count $argv))\n"
      "    test \"$words[$i]\" = \"$argv[$i]\"; or return 1\n"
      "  end\n"
      "end\n"
      "function __bevatron_at\n"
      "  test (count (commandline -opc)) -eq (math (count $argv) + 1); and __bevatron_has $argv\n"
      "end\n";
  for (const auto& [first, second] : command_words()) {
    out += concat("complete -c bevatron -f -n __fish_use_subcommand -a ", first, "\n");
    if (second.empty()) continue;
    out += concat("complete -c bevatron -f -n ", shell_word(concat("__bevatron_at ", first)),
                  " -a ", shell_word(join(second, " ")), "\n");
  }
  for (const Command* command : commands()) {
    for (const auto& [flag, row] : flags_of(*command)) {
      Words choices = flag == "--preset" ? preset_names() : row.choices();
      std::string value = !row.takes_value() ? "" : choices.empty() ? " -r" : " -x -a ";
      if (!choices.empty()) value += shell_word(join(choices, " "));
      out +=
          concat("complete -c bevatron -n ", shell_word(concat("__bevatron_has ", command->name)),
                 " -l ", flag.substr(2), value, " -d ", shell_word(brief(row.help)), "\n");
    }
  }
  return out;
}

}  // namespace bev
