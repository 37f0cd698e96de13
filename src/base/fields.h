// Reflection for configuration structs: each struct lists its members once (flag, help, range), and
// flags, YAML keys, help, the flag reference, JSON copies and diffs are derived from that list.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace bev {

// One member of a configuration struct, type-erased. Points into the struct it was listed from.
class Field {
 public:
  using Choice = std::pair<std::string, int>;
  // Converts an alternative spelling of a value into the canonical one; sets `problem` on failure.
  using Reader = std::string (*)(std::string_view text, std::string& problem);

  const std::string& name() const { return name_; }  // kebab case, without leading dashes
  const std::string& help() const { return help_; }
  const std::vector<std::string>& aliases() const { return aliases_; }
  const std::string& negation() const { return negation_; }  // "" if there is none
  bool is_flag() const { return bool_ != nullptr; }
  bool is_number() const { return int_ != nullptr || double_ != nullptr; }
  bool is_list() const { return ints_ != nullptr || doubles_ != nullptr || strings_ != nullptr; }
  // "integer >= 1", "number", "text", "a|b", "list of integers", "flag".
  std::string type_text() const;
  // Text for the help: the current value, or the words given to defaults_to().
  std::string default_text() const;

  // The current value as a flag would give it ("" for an empty list or unset text).
  std::string text() const;
  // Both set the value and return "". On failure they keep the old value and return what is wrong
  // and which values are valid. A list takes several items, or one item split at commas.
  std::string set_text(std::string_view value);
  std::string set_items(std::span<const std::string> items);

  Field& alias(std::string name);
  Field& negated_by(std::string name);  // name of a flag that switches this one off
  Field& min(double least);
  Field& max(double most);
  Field& limit(double most);   // max for technical reasons: not shown in type_text()
  Field& above(double bound);  // strictly greater
  Field& below(double bound);  // strictly less
  Field& one_of(std::vector<std::string> choices);  // of a text, or of each item of a list of texts
  Field& defaults_to(std::string words);
  Field& reads(Reader reader);

 private:
  friend class FieldList;
  template <class T>
  std::string read_number(std::string_view value, T& out) const;
  template <class T>
  std::string read_numbers(std::span<const std::string> items, std::vector<T>& out) const;
  std::string read_choice(std::string_view value, Choice& out) const;
  std::string range_text(bool with_limit) const;

  std::string name_, help_, negation_, default_words_;
  std::vector<std::string> aliases_;
  std::vector<Choice> choices_;
  Reader reader_ = nullptr;
  double least_ = -std::numeric_limits<double>::infinity();
  double most_ = std::numeric_limits<double>::infinity();
  bool open_below_ = false, open_above_ = false, hide_most_ = false;
  // Exactly one of these is set.
  std::int64_t* int_ = nullptr;
  double* double_ = nullptr;
  bool* bool_ = nullptr;
  std::string* string_ = nullptr;
  std::vector<std::int64_t>* ints_ = nullptr;
  std::vector<double>* doubles_ = nullptr;
  std::vector<std::string>* strings_ = nullptr;
  std::uint8_t* choice_ = nullptr;  // an enum class : std::uint8_t
};

// Parses true, yes, on, 1 or their opposites; returns "" or an error text.
std::string read_bool(std::string_view text, bool& out);

// A flag that expands to other settings: --swiglu stands for --gated --activation silu. A field
// that is also given by its own name takes precedence.
struct Shorthand {
  std::string section, name, help;
  std::vector<std::pair<std::string, std::string>> settings;  // pairs of field name and value
};

// A flag of other programs (Megatron-LM) that this list does not have. If it would change nothing
// it is accepted and `why` explains that; otherwise it is refused and `why` names the replacement.
struct ForeignFlag {
  enum class Values : std::uint8_t { kNone, kOne, kSeveral };  // that follow on a command line
  std::string name;
  bool taken = false;
  std::string why;
  Values values = Values::kNone;
};

class FieldList {
 public:
  Field& add(std::string name, std::int64_t& member, std::string help);
  Field& add(std::string name, double& member, std::string help);
  Field& add(std::string name, bool& member, std::string help);
  Field& add(std::string name, std::string& member, std::string help);
  Field& add(std::string name, std::vector<std::int64_t>& member, std::string help);
  Field& add(std::string name, std::vector<double>& member, std::string help);
  Field& add(std::string name, std::vector<std::string>& member, std::string help);
  // `Enum` is an enum class : std::uint8_t. If two choices have the same value, the first one is
  // shown.
  template <class Enum>
  Field& add(std::string name, Enum& member, std::vector<std::pair<std::string, Enum>> choices,
             std::string help) {
    static_assert(sizeof(Enum) == 1);
    std::vector<Field::Choice> plain;
    for (auto& [text, value] : choices) plain.emplace_back(text, static_cast<int>(value));
    return add_choice(std::move(name), reinterpret_cast<std::uint8_t&>(member), std::move(plain),
                      std::move(help));
  }
  void shorthand(std::string name, std::vector<std::pair<std::string, std::string>> settings,
                 std::string help);
  void foreign(ForeignFlag flag);

  // Later fields belong to this section ("model", "optimizer", ...) until the next call.
  void section(std::string name) { section_ = std::move(name); }

  struct Entry {
    std::string section;
    Field field;
  };
  const std::vector<std::unique_ptr<Entry>>& entries() const { return entries_; }
  const std::vector<Shorthand>& shorthands() const { return shorthands_; }
  const std::vector<ForeignFlag>& foreign_flags() const { return foreign_; }
  // Looks up by name or alias; nullptr if there is none.
  Field* find(std::string_view name) const;
  Entry* find_entry(std::string_view name) const;
  // Boolean field that `name` switches off ("no-" or "disable-" in front of its name, or its
  // negation); nullptr if there is none.
  Entry* find_negated(std::string_view name) const;
  const Shorthand* find_shorthand(std::string_view name) const;
  const ForeignFlag* find_foreign(std::string_view name) const;
  std::vector<std::string> sections() const;  // each one once, in order of appearance
  // Every valid spelling of a flag, without dashes; used for suggestions.
  std::vector<std::string> spellings() const;

 private:
  Field& add_choice(std::string name, std::uint8_t& member, std::vector<Field::Choice> choices,
                    std::string help);
  Field& push(std::string name, std::string help);
  std::string section_;
  std::vector<std::unique_ptr<Entry>> entries_;
  std::vector<Shorthand> shorthands_;
  std::vector<ForeignFlag> foreign_;
};

}  // namespace bev
