#include "app/options.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "app/other_names.h"
#include "app/yaml_file.h"
#include "base/error.h"
#include "base/fields.h"
#include "base/problems.h"
#include "base/text.h"

namespace bev {

namespace {

using Values = ForeignFlag::Values;

// A flag or key as the user wrote it, before its value is parsed.
struct Given {
  std::string name;    // underscores replaced by dashes
  std::string label;   // name in messages
  std::string origin;  // for the setting
  std::vector<std::string> values;
};

// The meaning of a name: a field, a negated field, a shorthand, or unknown.
struct Target {
  Field* field = nullptr;
  bool negated = false;
  const Shorthand* shorthand = nullptr;
  bool is_switch() const { return shorthand || (field && field->is_flag()); }
};

Target find_target(const FieldList& list, std::string_view name) {
  if (Field* field = list.find(name)) return {field, false, nullptr};
  if (auto* entry = list.find_negated(name)) return {&entry->field, true, nullptr};
  return {nullptr, false, list.find_shorthand(name)};
}

std::string dashed(std::string_view name) {
  std::string out(name);
  std::ranges::replace(out, '_', '-');
  return out;
}

std::string suggestion(const FieldList& list, std::string_view name, std::string_view dashes) {
  if (std::string known = known_as(list, name, dashes); !known.empty()) return known;
  std::vector<std::string> spellings = list.spellings();
  spellings.insert(spellings.end(), {"config", "help"});
  std::string nearest = nearest_name(name, spellings);
  return nearest.empty() ? "`bevatron help --search WORD` finds flags by their texts"
                         : concat("did you mean ", dashes, nearest, "?");
}

// Messages about unknown names: errors, and notes on accepted flags of other programs.
struct Remarks {
  std::vector<std::string>& problems;
  std::vector<std::string>& notes;

  // `kind` says whether the name is a flag or a key.
  void add_unknown(const FieldList& list, const std::string& name, const std::string& label,
                   std::string_view kind, std::string_view dashes) {
    if (const ForeignFlag* flag = list.find_foreign(name)) {
      std::vector<std::string>& out = flag->taken ? notes : problems;
      std::string text = concat(label, ": ", flag->why);
      if (std::ranges::find(out, text) == out.end()) out.push_back(std::move(text));
    } else {
      problems.push_back(concat(label, ": unknown ", kind, "; ", suggestion(list, name, dashes)));
    }
  }
};

// Splits the command line into flags with their values.
class Words {
 public:
  Words(const FieldList& list, std::span<const std::string> args, std::string_view words_flag,
        const Remarks& remarks)
      : list_(list), args_(args), words_flag_(words_flag), remarks_(remarks) {}

  std::vector<Given> read() {
    std::vector<Given> out;
    std::string label = concat("--", words_flag_);
    Given words{std::string(words_flag_), label, label, {}};
    auto names_words = [&](const Given& given) {
      return !words_flag_.empty() && list_.find(given.name) == list_.find(words_flag_);
    };
    while (at_ < args_.size()) {
      const std::string& arg = args_[at_++];
      if (arg == "--help" || arg == "-h") {
        help = true;
      } else if (!words_flag_.empty() && !arg.starts_with('-')) {
        words.values.push_back(arg);
      } else if (!arg.starts_with("--") || arg == "--") {
        stray(arg);
      } else if (std::optional<Given> given = read_flag(arg)) {
        if (given->name == "config") {
          configs.insert(configs.end(), given->values.begin(), given->values.end());
        } else {
          out.push_back(std::move(*given));
        }
      }
    }
    if (words.values.empty()) return out;
    if (std::ranges::any_of(out, names_words)) {
      remarks_.problems.push_back(concat(label, ": given by name and as ", join(words.values, " "),
                                         " without one; keep one of them"));
    }
    out.push_back(std::move(words));
    return out;
  }

  bool help = false;
  std::vector<std::string> configs;

 private:
  bool at_value() const { return at_ < args_.size() && !args_[at_].starts_with("--"); }

  void stray(const std::string& arg) {
    bool dash = arg.size() > 1 && arg[0] == '-' && arg != "--";
    remarks_.problems.push_back(
        concat("'", arg, "': belongs to no flag; ",
               dash ? concat("flags have two dashes: -", arg) : "leave it out"));
  }

  // How many values a flag takes; an unknown one takes all that follow.
  Values values_after(const Target& target, const std::string& name) const {
    if (target.is_switch()) return Values::kNone;
    if (target.field) return target.field->is_list() ? Values::kSeveral : Values::kOne;
    if (name == "config") return Values::kOne;
    const ForeignFlag* flag = list_.find_foreign(name);
    return flag ? flag->values : Values::kSeveral;
  }

  void take_values(Values values, std::vector<std::string>& out) {
    if (values == Values::kNone) {
      bool literal = at_value() && (args_[at_] == "true" || args_[at_] == "false");
      out.push_back(literal ? args_[at_++] : "true");
    }
    std::size_t most = values == Values::kSeveral ? args_.size() : values == Values::kOne ? 1 : 0;
    for (std::size_t i = 0; i < most && at_value(); ++i) out.push_back(args_[at_++]);
  }

  std::optional<Given> read_flag(const std::string& arg) {
    std::size_t equals = arg.find('=');
    std::string name = dashed(arg.substr(2, equals == std::string::npos ? equals : equals - 2));
    std::string label = "--" + name;
    Given given{name, label, label, {}};
    Target target = find_target(list_, name);
    bool known = target.field || target.shorthand || name == "config";
    if (!known) remarks_.add_unknown(list_, name, label, "flag", "--");
    if (equals != std::string::npos) {
      given.values.push_back(arg.substr(equals + 1));
    } else {
      take_values(values_after(target, name), given.values);
    }
    if (!known) return std::nullopt;
    if (!given.values.empty()) return given;
    remarks_.problems.push_back(concat(label, ": has no value; give ",
                                       target.field ? target.field->type_text() : "a file"));
    return std::nullopt;
  }

  const FieldList& list_;
  std::span<const std::string> args_;
  std::string_view words_flag_;
  Remarks remarks_;
  std::size_t at_ = 0;
};

// The settings of one source: the file or the command line.
class Layer {
 public:
  Layer(std::vector<std::string>& problems, std::vector<std::string>& unread)
      : problems_(problems), unread_(unread) {}

  void set(const FieldList& list, const Given& given) {
    Target target = find_target(list, given.name);
    Given plain = given;
    if (target.shorthand || target.negated) {
      bool on = true;
      std::string problem = read_bool(join(given.values, " "), on);
      if (!problem.empty()) return complain(given, problem);
      if (target.shorthand) {
        if (on) shorthands_.push_back({target.shorthand, given.label});
        return;
      }
      plain.values = {on ? "false" : "true"};
    }
    set_field(*target.field, plain);
  }

  // Shorthands come last: they set only fields that were not given by name.
  std::vector<Setting> finish(const FieldList& list) {
    std::size_t own = settings_.size();
    for (const auto& [shorthand, label] : shorthands_) {
      for (const auto& [name, value] : shorthand->settings) {
        auto found = std::ranges::find(settings_, name, &Setting::field);
        if (found == settings_.end()) {
          set_field(*list.find(name), {name, label, label, {value}});
        } else if (static_cast<std::size_t>(found - settings_.begin()) >= own &&
                   found->values[0] != value) {
          problems_.push_back(concat(label, ": sets --", name, " ", value, ", but ", found->origin,
                                     " sets it to ", found->values[0], "; keep one"));
        }
      }
    }
    return std::move(settings_);
  }

 private:
  void complain(const Given& given, const std::string& problem) {
    problems_.push_back(concat(given.label, ": ", problem));
  }

  void set_field(Field& field, const Given& given) {
    auto found = std::ranges::find(settings_, field.name(), &Setting::field);
    if (found != settings_.end()) {
      return complain(
          given, concat("given twice, as ", join(found->values, " "), " (", found->origin, ") and ",
                        join(given.values, " "), "; keep one"));
    }
    if (std::string problem = field.set_items(given.values); !problem.empty()) {
      unread_.push_back("--" + field.name());
      return complain(given, problem);
    }
    settings_.push_back({field.name(), given.values, given.origin});
  }

  std::vector<Setting> settings_;
  std::vector<std::pair<const Shorthand*, std::string>> shorthands_;
  std::vector<std::string>& problems_;
  std::vector<std::string>& unread_;
};

// If a flag is given several times, the last one counts: scripts end in "$@". Names that mean the
// same field are the same flag, and a note says all values.
std::vector<Given> last_of_each(const FieldList& list, std::vector<Given> flags,
                                std::vector<std::string>& notes) {
  auto meaning = [&](const Given& given) -> const void* {
    Target target = find_target(list, given.name);
    return target.field ? static_cast<const void*>(target.field) : target.shorthand;
  };
  auto words = [](const Given& given) {
    bool bare = given.values == std::vector<std::string>{"true"};
    return bare ? given.label : concat(given.label, " ", join(given.values, " "));
  };
  std::vector<Given> out;
  for (std::size_t i = 0; i < flags.size(); ++i) {
    auto same = [&](const Given& other) { return meaning(other) == meaning(flags[i]); };
    if (std::any_of(flags.begin() + static_cast<std::ptrdiff_t>(i) + 1, flags.end(), same))
      continue;
    std::vector<std::string> all;
    for (const Given& other : flags) {
      if (same(other) && (all.empty() || all.back() != words(other))) all.push_back(words(other));
    }
    if (all.size() > 1) {
      notes.push_back(concat(flags[i].label, ": given ",
                             all.size() == 2 ? "twice" : concat(all.size(), " times"), ", as ",
                             join(all, ", then "), "; the last one counts"));
    }
    out.push_back(flags[i]);
  }
  return out;
}

// The problem with the stated version of a file; "" if it can be read.
std::string version_problem(const std::vector<std::string>& values) {
  std::string text = join(values, " ");
  std::int64_t version = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), version);
  bool number = error == std::errc() && end == text.data() + text.size() && version >= 1;
  if (!number) return concat("'", text, "' is not a version; give ", kConfigVersion);
  if (version <= kConfigVersion) return "";
  return concat(version, " is newer than ", kConfigVersion,
                ", which this program reads; use the program that the file was written for");
}

// The known keys of a file; unknown keys become remarks.
std::vector<Given> read_config(const FieldList& list, const std::string& path, Remarks remarks,
                               bool& unread) {
  std::vector<Given> out;
  YamlFile file = read_yaml(path, list.sections());
  unread = file.keys.empty() && !file.problems.empty();
  std::vector<std::string>& problems = remarks.problems;
  problems.insert(problems.end(), file.problems.begin(), file.problems.end());
  auto version = std::ranges::find_if(
      file.keys, [](const YamlKey& key) { return key.section.empty() && key.name == "version"; });
  if (version != file.keys.end()) {
    std::string problem = version_problem(version->values);
    if (!problem.empty()) {
      problems.push_back(concat(path, ":", version->line, ": version: ", problem));
      unread = true;
      return out;
    }
    file.keys.erase(version);
  }
  for (YamlKey& key : file.keys) {
    std::string origin = concat(path, ":", key.line);
    std::string label = concat(origin, ": ", key.name);
    std::string name = dashed(key.name);
    Target target = find_target(list, name);
    if (!target.field && !target.shorthand) {
      remarks.add_unknown(list, name, label, "key", "");
      continue;
    }
    const std::string& section =
        target.field ? list.find_entry(target.field->name())->section : target.shorthand->section;
    if (!key.section.empty() && dashed(key.section) != section) {
      problems.push_back(
          concat(label, ": is not in section ", key.section, "; it belongs to ", section));
      continue;
    }
    out.push_back({name, label, origin, std::move(key.values)});
  }
  return out;
}

}  // namespace

const Setting* Options::find(std::string_view field) const {
  auto found = std::ranges::find(settings_, field, &Setting::field);
  return found == settings_.end() ? nullptr : &*found;
}

void Options::set(const FieldList& list, Setting setting) {
  std::string problem = list.find(setting.field)->set_items(setting.values);
  BEV_CHECK(problem.empty(), ErrorKind::kInput, setting.origin, ": ", setting.field, ": ", problem);
  std::erase_if(settings_, [&](const Setting& other) { return other.field == setting.field; });
  settings_.push_back(std::move(setting));
}

void Options::apply(const FieldList& list) const {
  for (const Setting& setting : settings_) list.find(setting.field)->set_items(setting.values);
}

void Options::add_problems(std::span<const std::string> broken) {
  if (config_unread_) return;  // a missing value may be in the file
  for (const std::string& problem : broken) {
    bool follows = std::ranges::any_of(
        unread_, [&](const std::string& flag) { return mentions_flag(problem, flag); });
    if (!follows) problems_.push_back(problem);
  }
}

void Options::throw_problems() const { bev::throw_problems(problems_); }

void need(const std::string& value, const char* flag, const char* what,
          std::vector<std::string>& problems) {
  if (value.empty()) problems.push_back(concat(flag, ": is missing; give ", what));
}

Options parse_options(const FieldList& list, std::span<const std::string> args,
                      std::string_view words_flag) {
  Options options;
  Remarks remarks{options.problems_, options.notes_};
  Words words(list, args, words_flag, remarks);
  std::vector<Given> flags = words.read();
  options.help_ = words.help;

  Layer from_file(options.problems_, options.unread_),
      from_flags(options.problems_, options.unread_);
  auto [second, end] = std::ranges::unique(words.configs);
  words.configs.erase(second, end);
  if (words.configs.size() > 1) {
    // The second may be meant to replace the first or to add to it.
    options.problems_.push_back(concat("--config: given twice, as ", join(words.configs, " and "),
                                       "; put all into one file"));
  } else if (words.configs.size() == 1) {
    for (const Given& given :
         read_config(list, words.configs[0], remarks, options.config_unread_)) {
      from_file.set(list, given);
    }
  }
  std::vector<Setting> file_settings = from_file.finish(list);
  for (const Given& given : last_of_each(list, std::move(flags), options.notes_)) {
    from_flags.set(list, given);
  }
  options.settings_ = from_flags.finish(list);
  for (Setting& setting : file_settings) {
    if (!options.given(setting.field)) options.settings_.push_back(std::move(setting));
  }
  return options;
}

}  // namespace bev
