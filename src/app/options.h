// Parser of the flags and the YAML file of a command, against its field list. Precedence: flag,
// file, value in the struct. Problems are collected, so that rules can add theirs before all are
// thrown.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace bev {

class FieldList;

// A field that was given, and its origin: "--lr" or "run.yaml:12".
struct Setting {
  std::string field;
  std::vector<std::string> values;
  std::string origin;
  bool recorded = false;  // by an earlier run that goes on, not given now
};

class Options {
 public:
  // Whether the user gave this field explicitly, by flag, file or shorthand.
  bool given(std::string_view field) const { return find(field) != nullptr; }
  const Setting* find(std::string_view field) const;
  const std::vector<Setting>& settings() const { return settings_; }
  bool help() const { return help_; }  // --help or -h was among the flags

  // Adds a setting, in place of an earlier one of the field, and sets the field. Throws
  // Error(kInput) naming the origin if the value is invalid.
  void set(const FieldList& list, Setting setting);
  // Sets the given fields again, after a preset or a model file has filled the struct.
  void apply(const FieldList& list) const;

  // Adds broken rules, except consequences of a value that could not be parsed.
  void add_problems(std::span<const std::string> broken);
  const std::vector<std::string>& problems() const { return problems_; }
  // Notes on flags of other programs that are accepted and have no effect, and on flags given
  // several times.
  const std::vector<std::string>& notes() const { return notes_; }
  // Throws one Error(kConfig) with all problems; returns if there are none.
  void throw_problems() const;

 private:
  friend Options parse_options(const FieldList& list, std::span<const std::string> args,
                               std::string_view words_flag);
  std::vector<Setting> settings_;
  std::vector<std::string> problems_, notes_;
  std::vector<std::string> unread_;  // fields whose value could not be parsed
  bool config_unread_ = false;       // the configuration file could not be read
  bool help_ = false;
};

// Version of the configuration file format. A file may state its version by `version` at the top
// level; the default is 1. A newer version is refused.
inline constexpr int kConfigVersion = 1;

// Adds "FLAG: is missing; give WHAT" if the value is empty.
void need(const std::string& value, const char* flag, const char* what,
          std::vector<std::string>& problems);

// Parses `[--config FILE.yaml] [flags]` (the arguments after the command) and sets the fields.
//   --name value, --name=value; booleans --name, --no-name, --disable-name, --name=false;
//   lists take several values or one with commas. Underscores are accepted for dashes. If a flag
//   is given several times, the last one counts and a note names all values.
//   YAML keys are flag names, flat or under their section.
// Positional arguments are values of the list `words_flag`; if it is "", they are errors.
Options parse_options(const FieldList& list, std::span<const std::string> args,
                      std::string_view words_flag = "");

}  // namespace bev
