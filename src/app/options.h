// Flags and the YAML file of a command: parsed against its field list, flag over file over what the
// struct holds. Problems are collected, so that the rules can add theirs before all are thrown.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace bev {

class FieldList;

// A field that was given, and where: "--lr" or "run.yaml:12".
struct Setting {
  std::string field;
  std::vector<std::string> values;
  std::string origin;
};

class Options {
 public:
  // Whether the user gave this field himself, by flag, file or shorthand.
  bool given(std::string_view field) const { return find(field) != nullptr; }
  const Setting* find(std::string_view field) const;
  const std::vector<Setting>& settings() const { return settings_; }
  bool help() const { return help_; }  // --help or -h was among the flags

  // Sets the given fields again, after a preset or a model's file has filled the struct.
  void apply(const FieldList& list) const;

  // Adds what broke the rules, less what only follows from a value that could not be read.
  void add_problems(std::span<const std::string> broken);
  const std::vector<std::string>& problems() const { return problems_; }
  // What was given, changes nothing, and is no mistake: flags of other programs.
  const std::vector<std::string>& notes() const { return notes_; }
  // One Error of kind config with all problems; returns when there are none.
  void throw_problems() const;

 private:
  friend Options parse_options(const FieldList& list, std::span<const std::string> args,
                               std::string_view words_flag);
  std::vector<Setting> settings_;
  std::vector<std::string> problems_, notes_;
  std::vector<std::string> unread_;  // fields whose value was wrong
  bool config_unread_ = false;       // the configuration file could not be read at all
  bool help_ = false;
};

// The version of configuration files. A file may name the one that it was written for by `version`
// at the top level; without it this is 1. A newer one is refused.
inline constexpr int kConfigVersion = 1;

// Adds "FLAG: is missing; give WHAT" where the value is empty.
void need(const std::string& value, const char* flag, const char* what,
          std::vector<std::string>& problems);

// Parses `[--config FILE.yaml] [flags]` (the words after the command) and sets the fields.
//   --name value, --name=value; booleans --name, --no-name, --name=false;
//   lists take several values or one with commas. Underscores do for dashes.
//   YAML keys are flag names, flat or under their section.
// Words that belong to no flag are values of `words_flag`, a list; "": they are mistakes.
Options parse_options(const FieldList& list, std::span<const std::string> args,
                      std::string_view words_flag = "");

}  // namespace bev
